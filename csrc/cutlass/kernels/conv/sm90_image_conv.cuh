// 3x3 convolutions of few channels, stride 1 and a border of 1, without copies of the image for
// each tap: a patch of 10 x 10 pixels lies in shared memory as 100 rows of 64 channels, and the
// operand of a tap is the same rows from another one on, in groups of 8 that are 10 apart.
//
// A block keeps the weight of 64 outputs. Its two warpgroups have tiles of 8 x 8 pixels and a
// thread each that copies their patches, so that one multiplies while the other finishes a tile.
#pragma once

#include "csrc/cutlass/kernels/conv/sm90_image_conv.h"
#include "csrc/cutlass/kernels/conv/sm90_pointwise_conv.cuh"

namespace fusedops::image_conv {

using namespace sm90;
using pointwise_conv::finish_box;
using pointwise_conv::keep_norm;

inline constexpr int kTile = 8, kPatch = kTile + 2, kTaps = 9, kTapColumns = 64;
inline constexpr int kGroups = 2, kMultipliers = kGroups * 128, kThreads = kMultipliers + 64;
inline constexpr int kMostStages = 4, kMostSteps = int(kMostChannels) / kTapColumns;
inline constexpr int kBoxBytes = kTile * kTile * kBoxRowBytes;
inline constexpr int kTapBytes = kTapColumns * kBoxRowBytes, kStepBytes = kTaps * kTapBytes;
inline constexpr int kCopiedBytes = kPatch * kPatch * kBoxRowBytes;
inline constexpr int kPatchBytes = (kCopiedBytes + 1023) / 1024 * 1024;

template <bool kTransposed_>
struct Shape {
  static constexpr int kColumns = kTapColumns;
  static constexpr bool kTransposed = kTransposed_;
  static constexpr int kVectorBytes = pointwise_conv::kVectors * kColumns * 4;
  static constexpr int kBarriers = kGroups * 2 * kMostStages + kMostSteps;
  static constexpr int kFixedBytes = kGroups * kBoxBytes + kVectorBytes + kBarriers * 8;
};

struct Maps {
  CUtensorMap x, weight, y;
};

struct Problem {
  int tiles, tiles_x, tiles_y, tiles_n;
  int n, channels;
  int steps, stages;
  Activation activation;
  ColumnNorm norm;
};

// Shared memory: results, the weight, patches, vectors, barriers.
template <class S>
struct Shared {
  unsigned char* bytes;
  int steps, stages;

  __device__ __forceinline__ Shared(unsigned char* base, const Problem& p)
      : bytes(base), steps(p.steps), stages(p.stages) {}

  __device__ __forceinline__ unsigned char* buffer(int group) const {
    return bytes + group * kBoxBytes;
  }
  __device__ __forceinline__ unsigned char* weight(int step, int tap) const {
    return bytes + kGroups * kBoxBytes + (step * kTaps + tap) * kTapBytes;
  }
  __device__ __forceinline__ unsigned char* patch(int stage, int group) const {
    return weight(steps, 0) + (group * stages + stage) * kPatchBytes;
  }
  __device__ __forceinline__ float* vector(int i) const {
    return reinterpret_cast<float*>(patch(0, kGroups)) + i * S::kColumns;
  }
  __device__ __forceinline__ uint64_t* barriers() const {
    return reinterpret_cast<uint64_t*>(patch(0, kGroups) + S::kVectorBytes);
  }
  __device__ __forceinline__ uint64_t* full(int stage, int group) const {
    return barriers() + group * kMostStages + stage;
  }
  __device__ __forceinline__ uint64_t* empty(int stage, int group) const {
    return full(stage, kGroups + group);
  }
  __device__ __forceinline__ uint64_t* weight_full(int step) const {
    return full(step, 2 * kGroups);
  }
};

template <class S>
__device__ __forceinline__ void init_barriers(const Shared<S>& shared) {
  for (int group = 0; group < kGroups; ++group) {
    for (int i = 0; i < kMostStages; ++i) {
      init_barrier(shared_address(shared.full(i, group)), 1);
      init_barrier(shared_address(shared.empty(i, group)), 4);  // warps
    }
  }
  for (int i = 0; i < kMostSteps; ++i) init_barrier(shared_address(shared.weight_full(i)), 1);
  fence_barrier_init();
}

// Where a tile lies, and the tiles of a warpgroup.
struct Window {
  int x, y, image;
  __device__ __forceinline__ Window(const Problem& p, int tile)
      : x(tile % p.tiles_x * kTile),
        y(tile / p.tiles_x % p.tiles_y * kTile),
        image(tile / p.tiles_x / p.tiles_y) {}
};
__device__ __forceinline__ int first_tile(const Problem& p, int group) {
  return int(blockIdx.x) / p.tiles_n * kGroups + group;
}
__device__ __forceinline__ int tile_step(const Problem& p) {
  return int(gridDim.x) / p.tiles_n * kGroups;
}
__device__ __forceinline__ int first_output(const Problem& p) {
  return int(blockIdx.x) % p.tiles_n * kTapColumns;
}

__device__ __forceinline__ void load_window(const CUtensorMap& map, uint64_t* barrier, void* to,
                                            int channel, int x, int y, int image) {
  constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
  cute::SM90_TMA_LOAD_4D::copy(&map, barrier, kHint, to, channel, x, y, image);
}

// The weight of one step. Transposed, its rows are the step's channels and its columns outputs,
// with the taps in the other order.
template <class S>
__device__ __forceinline__ void load_weight(const Problem& p, const Maps& maps,
                                            const Shared<S>& shared, int step) {
  uint64_t* const full = shared.weight_full(step);
  expect_bytes(shared_address(full), kStepBytes);
  const int channel = step * kTapColumns, output = first_output(p);
  for (int tap = 0; tap < kTaps; ++tap) {
    const int column =
        S::kTransposed ? (kTaps - 1 - tap) * p.n + output : tap * p.channels + channel;
    load_box<false>(maps.weight, full, shared.weight(step, tap), column,
                    S::kTransposed ? channel : output);
  }
}

// One thread copies the patches of a warpgroup, that of the first one the weight, too.
template <class S>
__device__ __forceinline__ void copy_patches(const Problem& p, const Maps& maps,
                                             const Shared<S>& shared, int group) {
  Place place;
  for (int tile = first_tile(p, group); tile < p.tiles; tile += tile_step(p)) {
    const Window at(p, tile);
    for (int step = 0; step < p.steps; ++step) {
      uint64_t* const full = shared.full(place.stage, group);
      wait_barrier(shared_address(shared.empty(place.stage, group)), place.parity ^ 1);
      expect_bytes(shared_address(full), kCopiedBytes);
      load_window(maps.x, full, shared.patch(place.stage, group), step * kTapColumns, at.x - 1,
                  at.y - 1, at.image);
      if (group == 0 && tile == first_tile(p, 0)) load_weight(p, maps, shared, step);
      place.advance(p.stages);
    }
  }
}

// What is applied to sums of the block's columns.
template <class T, class S>
__device__ __forceinline__ void load_vectors(const Problem& p, const Shared<S>& shared) {
  if (threadIdx.x < S::kColumns) {
    const int c = threadIdx.x, i = min(first_output(p) + c, p.n - 1);
    keep_norm(shared, c, norm_of_column<T>(p.norm, i));
  }
  named_barrier<kMultipliers>(1);
}

// Groups of 8 rows that are kPatch apart, from any row on. NOTE: the swizzle goes by the address,
// as the copy engine's does, so that the matrix may begin at any row.
__device__ __forceinline__ uint64_t window_descriptor(uint32_t address) {
  constexpr uint64_t kApart = kPatch * kBoxRowBytes >> 4;
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t(1) << 16 | kApart << 32 | uint64_t(1) << 62;
}

template <class T, class S>
__device__ __forceinline__ void multiply_tile(const Problem& p, const Shared<S>& shared, int group,
                                              bool is_first, Place& place,
                                              float (&sums)[S::kColumns / 2]) {
  constexpr uint64_t kStep = S::kTransposed ? wgmma::kStepRows : wgmma::kStepK;
#pragma unroll
  for (int i = 0; i < S::kColumns / 2; ++i) sums[i] = 0;
  for (int step = 0; step < p.steps; ++step) {
    if (is_first) wait_barrier(shared_address(shared.weight_full(step)), 0);
    wait_barrier(shared_address(shared.full(place.stage, group)), place.parity);
    const uint64_t a = window_descriptor(shared_address(shared.patch(place.stage, group)));
    const uint64_t b = wgmma::descriptor(shared_address(shared.weight(step, 0)));
    wgmma::fence();
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      const uint64_t from = a + ((tap / 3 * kPatch + tap % 3) * kBoxRowBytes >> 4);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        wgmma::multiply<T, S::kColumns, false, S::kTransposed>(
            sums, from + k * wgmma::kStepK, b + (tap * kTapBytes >> 4) + k * kStep);
      }
    }
    wgmma::commit();
    wgmma::wait<0>();
    if (threadIdx.x % 32 == 0) arrive(shared_address(shared.empty(place.stage, group)));
    place.advance(p.stages);
  }
  wgmma::settle(sums);
}

template <class T, class S>
__device__ __forceinline__ void multiply_tiles(const Problem& p, const Maps& maps,
                                               const Shared<S>& shared) {
  const int group = wgmma::warpgroup();
  const bool leads = threadIdx.x % 128 == 0;
  const int output = first_output(p);
  load_vectors<T>(p, shared);
  unsigned char* const buffer = shared.buffer(group);
  Place place;
  for (int tile = first_tile(p, group); tile < p.tiles; tile += tile_step(p)) {
    const Window at(p, tile);
    float sums[S::kColumns / 2];
    multiply_tile<T>(p, shared, group, tile == first_tile(p, group), place, sums);
    if (leads) cute::tma_store_wait<0>();  // the tile before has left
    named_barrier<128>(2 + group);
    finish_box<T, false>(p.activation, shared, sums, buffer, 0);
    fence_async_copies();
    named_barrier<128>(2 + group);
    if (leads) {
      cute::SM90_TMA_STORE_4D::copy(&maps.y, buffer, output, at.x, at.y, at.image);
      cute::tma_store_arrive();
    }
  }
  if (leads) cute::tma_store_wait<0>();
}

template <class T, bool kTransposed>
__global__ void __launch_bounds__(kThreads, 1)
    image_conv_kernel(const __grid_constant__ Problem p, const __grid_constant__ Maps maps) {
  using S = Shape<kTransposed>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const Shared<S> shared(shared_bytes, p);
  if (threadIdx.x == kMultipliers) init_barriers(shared);
  __syncthreads();
  wait_for_predecessor();
  if (threadIdx.x >= kMultipliers) {
    if (threadIdx.x % 32 == 0) {
      copy_patches(p, maps, shared, (int(threadIdx.x) - kMultipliers) / 32);
    }
    return;
  }
  multiply_tiles<T>(p, maps, shared);
}

}  // namespace fusedops::image_conv
