// 1x1 convolutions of few channels, which wait for memory: rows (N H W, K) times a weight (N, K),
// then batch norm, residual and activation, in sums of float32.
//
// A block has the columns of one tile and walks tiles of 128 rows. One thread copies x, and the
// weight, once or beside each step of x; two warpgroups multiply 64 rows each. A residual comes
// into shared memory while the tile before is multiplied, the result takes its place and leaves
// from there: memory is read and written all the time.
#pragma once

#include "csrc/common/device/activation.cuh"
#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/cutlass/kernels/conv/sm90_pointwise_conv.h"
#include "csrc/cutlass/kernels/hopper/column_norm.cuh"
#include "csrc/cutlass/kernels/hopper/sm90_pipeline.cuh"
#include "csrc/cutlass/kernels/hopper/sm90_tma.cuh"
#include "csrc/cutlass/kernels/hopper/wgmma.cuh"

namespace fusedops::pointwise_conv {

using namespace sm90;

inline constexpr int kTileRows = 128, kGroupRows = 64;  // of a block, of a warpgroup
inline constexpr int kBoxColumns = 64;
inline constexpr int kMultipliers = 256, kThreads = kMultipliers + 32;
inline constexpr int kMostStages = 8, kMostSteps = kMostK / kBoxColumns;
inline constexpr int kBoxBytes = kGroupRows * kBoxRowBytes;
inline constexpr int kRowStepBytes = kTileRows * kBoxRowBytes;
inline constexpr int kVectors = 3;  // mean, scale, bias
inline constexpr int kMostBuffers = 3;

template <int kColumns_, bool kResidual_>
struct Shape {
  static constexpr int kColumns = kColumns_;
  static constexpr bool kResidual = kResidual_;
  static constexpr int kBoxes = kColumns / kBoxColumns;
  // NOTE: of three, one is filled and one leaves while the third is multiplied.
  static constexpr int kBuffers = kResidual ? 3 : 2;
  static constexpr int kBufferBytes = 2 * kBoxes * kBoxBytes;
  static constexpr int kWeightStepBytes = kColumns * kBoxRowBytes;
  static constexpr int kVectorBytes = kVectors * kColumns * 4;
  static constexpr int kBarriers = 2 * kMostStages + kMostSteps + 2 * kMostBuffers;
  static constexpr int kFixedBytes = kBuffers * kBufferBytes + kVectorBytes + kBarriers * 8;
};

struct Maps {
  CUtensorMap x, weight, residual, y;
};

struct Problem {
  int m, n;
  int tiles, tiles_n;  // all; across
  int steps, stages;
  bool keeps_weight;  // in shared memory, for all of a block's tiles
  Activation activation;
  ColumnNorm norm;
};

// Shared memory: buffers of results, the kept weight, stages, vectors, barriers.
template <class S>
struct Shared {
  unsigned char* bytes;
  int kept, stage_bytes, stages;

  __device__ __forceinline__ Shared(unsigned char* base, const Problem& p)
      : bytes(base),
        kept(p.keeps_weight ? p.steps * S::kWeightStepBytes : 0),
        stage_bytes(kRowStepBytes + (p.keeps_weight ? 0 : S::kWeightStepBytes)),
        stages(p.stages) {}

  __device__ __forceinline__ unsigned char* buffer(int i, int group) const {
    return bytes + i * S::kBufferBytes + group * S::kBoxes * kBoxBytes;
  }
  __device__ __forceinline__ unsigned char* kept_weight(int step) const {
    return bytes + S::kBuffers * S::kBufferBytes + step * S::kWeightStepBytes;
  }
  __device__ __forceinline__ unsigned char* rows(int stage) const {
    return bytes + S::kBuffers * S::kBufferBytes + kept + stage * stage_bytes;
  }
  __device__ __forceinline__ unsigned char* weight(int stage) const {
    return rows(stage) + kRowStepBytes;
  }
  __device__ __forceinline__ float* vector(int i) const {
    return reinterpret_cast<float*>(rows(stages)) + i * S::kColumns;
  }
  __device__ __forceinline__ uint64_t* barriers() const {
    return reinterpret_cast<uint64_t*>(rows(stages) + S::kVectorBytes);
  }
  __device__ __forceinline__ uint64_t* full(int stage) const { return barriers() + stage; }
  __device__ __forceinline__ uint64_t* empty(int stage) const {
    return barriers() + kMostStages + stage;
  }
  __device__ __forceinline__ uint64_t* weight_full(int step) const {
    return barriers() + 2 * kMostStages + step;
  }
  __device__ __forceinline__ uint64_t* residual_full(int i, int group) const {
    return barriers() + 2 * kMostStages + kMostSteps + 2 * i + group;
  }
};

template <class S>
__device__ __forceinline__ void init_barriers(const Shared<S>& shared) {
  for (int i = 0; i < kMostStages; ++i) {
    init_barrier(shared_address(shared.full(i)), 1);
    init_barrier(shared_address(shared.empty(i)), kMultipliers / 32);
  }
  for (int i = 0; i < kMostSteps; ++i) init_barrier(shared_address(shared.weight_full(i)), 1);
  for (int i = 0; i < 2 * kMostBuffers; ++i) {
    init_barrier(shared_address(shared.residual_full(i / 2, i % 2)), 1);
  }
  fence_barrier_init();
}

// One thread copies what all tiles of the block multiply.
template <class S>
__device__ __forceinline__ void copy_tiles(const Problem& p, const Maps& maps,
                                           const Shared<S>& shared) {
  const int column = int(blockIdx.x) % p.tiles_n * S::kColumns;
  Place place;
  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const int row = tile / p.tiles_n * kTileRows;
    for (int step = 0; step < p.steps; ++step) {
      if (p.keeps_weight && tile == int(blockIdx.x)) {
        expect_bytes(shared_address(shared.weight_full(step)), S::kWeightStepBytes);
        load_box<false>(maps.weight, shared.weight_full(step), shared.kept_weight(step),
                        step * kBoxColumns, column);
      }
      uint64_t* const full = shared.full(place.stage);
      wait_barrier(shared_address(shared.empty(place.stage)), place.parity ^ 1);
      expect_bytes(shared_address(full), shared.stage_bytes);
      load_box<false>(maps.x, full, shared.rows(place.stage), step * kBoxColumns, row);
      if (!p.keeps_weight) {
        load_box<false>(maps.weight, full, shared.weight(place.stage), step * kBoxColumns, column);
      }
      place.advance(p.stages);
    }
  }
}

template <class Shared>
__device__ __forceinline__ void keep_norm(const Shared& shared, int column,
                                          const NormOfColumn& norm) {
  shared.vector(0)[column] = norm.mean;
  shared.vector(1)[column] = norm.scale;
  shared.vector(2)[column] = norm.bias;
}

// What is applied to sums of the block's columns: (sum - mean) * scale + bias.
template <class T, class S>
__device__ __forceinline__ void load_vectors(const Problem& p, const Shared<S>& shared) {
  const int column = int(blockIdx.x) % p.tiles_n * S::kColumns;
  for (int c = threadIdx.x; c < S::kColumns; c += kMultipliers) {
    const int i = min(column + c, p.n - 1);
    keep_norm(shared, c, norm_of_column<T>(p.norm, i));
  }
  named_barrier<kMultipliers>(1);
}

// The boxes of a warpgroup's 64 rows that exist.
template <class S>
__device__ __forceinline__ int boxes_of(const Problem& p, int row, int column) {
  if (row >= p.m) return 0;
  return min(S::kBoxes, (p.n - column + kBoxColumns - 1) / kBoxColumns);
}

template <class S>
__device__ __forceinline__ void load_residual(const Problem& p, const Maps& maps,
                                              const Shared<S>& shared, int tile, int i, int group) {
  const int column = tile % p.tiles_n * S::kColumns;
  const int row = tile / p.tiles_n * kTileRows + group * kGroupRows;
  const int boxes = boxes_of<S>(p, row, column);
  if (boxes == 0) return;
  uint64_t* const full = shared.residual_full(i, group);
  expect_bytes(shared_address(full), boxes * kBoxBytes);
  for (int box = 0; box < boxes; ++box) {
    load_box<false>(maps.residual, full, shared.buffer(i, group) + box * kBoxBytes,
                    column + box * kBoxColumns, row);
  }
}

template <class S, class T>
__device__ __forceinline__ void multiply_tile(const Problem& p, const Shared<S>& shared, int group,
                                              bool is_first, Place& place,
                                              float (&sums)[S::kColumns / 2]) {
#pragma unroll
  for (int i = 0; i < S::kColumns / 2; ++i) sums[i] = 0;
  const bool arrives = threadIdx.x % 32 == 0;
  int before = 0;
  for (int step = 0; step < p.steps; ++step) {
    if (p.keeps_weight && is_first) wait_barrier(shared_address(shared.weight_full(step)), 0);
    wait_barrier(shared_address(shared.full(place.stage)), place.parity);
    const unsigned char* const weight =
        p.keeps_weight ? shared.kept_weight(step) : shared.weight(place.stage);
    const uint64_t a =
        wgmma::descriptor(shared_address(shared.rows(place.stage)) + group * kBoxBytes);
    const uint64_t b = wgmma::descriptor(shared_address(weight));
    wgmma::fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma::multiply<T, S::kColumns>(sums, a + k * wgmma::kStepK, b + k * wgmma::kStepK);
    }
    wgmma::commit();
    if (step > 0) {
      wgmma::wait<1>();
      if (arrives) arrive(shared_address(shared.empty(before)));
    }
    before = place.stage;
    place.advance(p.stages);
  }
  wgmma::wait<0>();
  wgmma::settle(sums);
  if (arrives) arrive(shared_address(shared.empty(before)));
}

template <class T>
__device__ __forceinline__ float2 pair_of(uint32_t word) {
  if constexpr (__is_same(T, __half)) {
    return __half22float2(reinterpret_cast<const __half2&>(word));
  } else {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(word));
  }
}

// The results of 64 columns, which replace what `box` has of a residual; vectors: shared.vector().
template <class T, bool kResidual, class Shared>
__device__ __forceinline__ void finish_box(Activation activation, const Shared& shared,
                                           const float* sums, unsigned char* box, int column) {
  const int lane = threadIdx.x % 32;
  const int row = int(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  float z[32];
  uint32_t* words[16];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int c = column + j * 8 + lane % 4 * 2;
    const float2 mean = *reinterpret_cast<const float2*>(shared.vector(0) + c);
    const float2 scale = *reinterpret_cast<const float2*>(shared.vector(1) + c);
    const float2 bias = *reinterpret_cast<const float2*>(shared.vector(2) + c);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 4 * j + 2 * half;
      // NOTE: the 128-byte swizzle; row % 8 is lane / 4.
      words[2 * j + half] = reinterpret_cast<uint32_t*>(box + (row + 8 * half) * kBoxRowBytes +
                                                        ((j ^ (lane / 4)) * 16 + lane % 4 * 4));
      z[i] = (sums[i] - mean.x) * scale.x + bias.x;
      z[i + 1] = (sums[i + 1] - mean.y) * scale.y + bias.y;
      if constexpr (kResidual) {
        const float2 added = pair_of<T>(*words[2 * j + half]);
        z[i] += added.x;
        z[i + 1] += added.y;
      }
    }
  }
  with_activation(activation, [&]<Activation kActivation>() {
    resolve_rare<kActivation>(activation, [&]<Activation kNow>() {
#pragma unroll
      for (int i = 0; i < 32; ++i) z[i] = activate_as<kNow, kAccuracyOf<T>>(z[i]);
    });
  });
#pragma unroll
  for (int i = 0; i < 16; ++i) *words[i] = rounded<T>(z[2 * i], z[2 * i + 1]);
}

template <class T, class S>
__device__ __forceinline__ void multiply_tiles(const Problem& p, const Maps& maps,
                                               const Shared<S>& shared) {
  const int group = wgmma::warpgroup();
  const bool leads = threadIdx.x % 128 == 0;
  const int column = int(blockIdx.x) % p.tiles_n * S::kColumns;
  if (S::kResidual && leads) load_residual(p, maps, shared, blockIdx.x, 0, group);
  load_vectors<T>(p, shared);
  Place place;
  int i = 0;           // the buffer
  uint32_t round = 0;  // how often it has been taken, modulo 2
  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const int row = tile / p.tiles_n * kTileRows + group * kGroupRows;
    if (S::kResidual && leads && tile + int(gridDim.x) < p.tiles) {
      cute::tma_store_wait<S::kBuffers - 2>();
      load_residual(p, maps, shared, tile + gridDim.x, (i + 1) % S::kBuffers, group);
    }
    float sums[S::kColumns / 2];
    multiply_tile<S, T>(p, shared, group, tile == int(blockIdx.x), place, sums);
    const int boxes = boxes_of<S>(p, row, column);
    if (boxes > 0) {
      if constexpr (S::kResidual) {
        wait_barrier(shared_address(shared.residual_full(i, group)), round);
      } else {
        if (leads) cute::tma_store_wait<S::kBuffers - 1>();
        named_barrier<128>(2 + group);
      }
#pragma unroll
      for (int box = 0; box < S::kBoxes; ++box) {
        if (box < boxes) {
          finish_box<T, S::kResidual>(p.activation, shared, sums + box * 32,
                                      shared.buffer(i, group) + box * kBoxBytes, box * kBoxColumns);
        }
      }
      fence_async_copies();
      named_barrier<128>(2 + group);
      if (leads) {
        for (int box = 0; box < boxes; ++box) {
          cute::SM90_TMA_STORE_2D::copy(&maps.y, shared.buffer(i, group) + box * kBoxBytes,
                                        column + box * kBoxColumns, row);
        }
        cute::tma_store_arrive();
      }
    }
    if (++i == S::kBuffers) i = 0, round ^= 1;
  }
  if (leads) cute::tma_store_wait<0>();
}

template <class T, int kColumns, bool kResidual>
__global__ void __launch_bounds__(kThreads, 1)
    pointwise_conv_kernel(const __grid_constant__ Problem p, const __grid_constant__ Maps maps) {
  using S = Shape<kColumns, kResidual>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const Shared<S> shared(shared_bytes, p);
  if (threadIdx.x == kMultipliers) init_barriers(shared);
  __syncthreads();
  wait_for_predecessor();
  if (threadIdx.x >= kMultipliers) {
    if (threadIdx.x == kMultipliers) copy_tiles(p, maps, shared);
    return;
  }
  multiply_tiles<T>(p, maps, shared);
}

}  // namespace fusedops::pointwise_conv
