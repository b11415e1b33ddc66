// The gradients of y = act(x (M, K) @ w (N, K)^T + b) for N, K <= 256 in one pass over the rows:
// what they cost is reading dy, x and what forward saved, and writing dx, once.
//
// A block holds up to 128 columns of w in shared memory and takes tiles of 64 rows, loaded by a
// warp of its own. It turns dy into dz = dy * act' where it lies, multiplies dx = dz w, and adds
// dz^T x to the sums that it keeps in registers over all its tiles. Where K > 128, two blocks take
// the same rows. The sums over rows of all blocks are added up in a fixed order by a second kernel.
#pragma once

#include <cuda_runtime.h>

#include "csrc/common/device/activation_gradient.cuh"
#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/cutlass/kernels/hopper/sm90_pipeline.cuh"
#include "csrc/cutlass/kernels/hopper/sm90_tma.cuh"
#include "csrc/cutlass/kernels/hopper/wgmma.cuh"
#include "csrc/cutlass/kernels/narrow/sm90_narrow.h"

namespace fusedops::narrow {

using namespace sm90;

struct Problem {
  float* partial;  // (slots, width)
  int64_t width;   // see Backward
  int tiles, n, k;
  int chunks, slots;
  bool needs_dx, needs_dweight, needs_dbias;
  Activation activation;
};

struct Maps {
  CUtensorMap dy, saved, x, weight, dx;
};

inline constexpr int kBoxBytes = kTileRows * kBoxRowBytes;
inline constexpr int kMaxStages = 8;
inline constexpr int kBarrierBytes = (2 * kMaxStages + 1) * 8;

// kNBoxes: of 64 columns of dy. kKBoxes: of 64 columns of x to a block, each multiplied by a
// warpgroup.
template <int kNBoxes_, int kKBoxes_>
struct Shape {
  static constexpr int kNBoxes = kNBoxes_, kKBoxes = kKBoxes_;
  static constexpr int kMultipliers = kKBoxes * 128;
  // The sums take most registers: a warpgroup copies and gives up its own.
  static constexpr bool kManySums = kNBoxes == 4 && kKBoxes == 2;
  static constexpr int kThreads = kMultipliers + (kManySums ? 128 : 32);
  static constexpr int kPerSm = blocks_per_sm(kNBoxes, kKBoxes);
  static constexpr int kWeightBytes = kNBoxes * kKBoxes * kBoxBytes;
  // A stage: dy, which becomes dz; what was saved, then dx; x.
  static constexpr int kSaved = kNBoxes * kBoxBytes;
  static constexpr int kX = kSaved + (kNBoxes > kKBoxes ? kNBoxes : kKBoxes) * kBoxBytes;
  static constexpr int kStageBytes = kX + kKBoxes * kBoxBytes;
  static constexpr int kRoom = shared_budget(kPerSm) - kWeightBytes - kBarrierBytes;
  static constexpr int kStages = std::min(kMaxStages, kRoom / kStageBytes);
  static_assert(kStages >= 2);
  static constexpr int kBytes = kStages * kStageBytes + kWeightBytes + kBarrierBytes;
  static constexpr int kCluster = 1;
  // The sums of dweight: the two warpgroups share out dy's columns where that allows the wider
  // instruction, which reads less from shared memory, else x's.
  static constexpr bool kByRows = kKBoxes == 2 && kNBoxes >= 2;
  static constexpr int kParts = kByRows ? kNBoxes / 2 : kNBoxes;
  static constexpr int kColumns = kByRows ? 128 : 64;
  // A thread of the gradient takes one unit of 16 bytes in every kRowStep-th row.
  static constexpr int kUnits = kNBoxes * 8;
  static constexpr int kRowStep = kMultipliers / kUnits;
  static constexpr int kPasses = kTileRows / kRowStep;
};

// Addresses in shared memory: the stages, w, a full and an empty barrier of each stage, w's.
template <class S>
struct Shared {
  unsigned char* bytes;
  uint32_t stages, weight, barriers;

  __device__ explicit Shared(unsigned char* memory) : bytes(memory) {
    stages = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
    weight = stages + S::kStages * S::kStageBytes;
    barriers = weight + S::kWeightBytes;
  }
  __device__ uint32_t stage(int i) const { return stages + i * S::kStageBytes; }
  __device__ uint32_t full(int i) const { return barriers + i * 8; }
  __device__ uint32_t empty(int i) const { return barriers + (kMaxStages + i) * 8; }
  __device__ uint32_t weight_full() const { return barriers + 2 * kMaxStages * 8; }
  template <class P = void>
  __device__ P* at(uint32_t address) const {
    return reinterpret_cast<P*>(bytes + (address - stages));
  }
};

// ---- the copying thread ----

template <class S>
__device__ void copy_tiles(const Problem& p, const Maps& maps, const Shared<S>& shared, int slot,
                           int column) {
  const auto load = [&](const CUtensorMap& map, uint32_t barrier, uint32_t to, int col, int row) {
    load_box<false>(map, shared.template at<uint64_t>(barrier), shared.at(to), col, row);
  };
  const bool saved = saved_for_backward(p.activation) != Saved::kNothing;
  if (p.needs_dx) {
    expect_bytes(shared.weight_full(), S::kWeightBytes);
    for (int i = 0; i < S::kKBoxes; ++i) {
      load(maps.weight, shared.weight_full(), shared.weight + i * S::kNBoxes * kBoxBytes,
           column + i * kBoxFeatures, 0);
    }
  }
  const int bytes = kBoxBytes * (S::kNBoxes * (saved ? 2 : 1) + (p.needs_dweight ? S::kKBoxes : 0));
  Place place;
  for (int tile = slot; tile < p.tiles; tile += p.slots, place.advance(S::kStages)) {
    const uint32_t full = shared.full(place.stage), to = shared.stage(place.stage);
    const int row = tile * kTileRows;
    wait_barrier(shared.empty(place.stage), place.parity ^ 1);
    expect_bytes(full, bytes);
#pragma unroll
    for (int i = 0; i < S::kNBoxes; ++i) {
      load(maps.dy, full, to + i * kBoxBytes, i * kBoxFeatures, row);
      if (saved) load(maps.saved, full, to + S::kSaved + i * kBoxBytes, i * kBoxFeatures, row);
    }
    if (!p.needs_dweight) continue;
#pragma unroll
    for (int i = 0; i < S::kKBoxes; ++i) {
      load(maps.x, full, to + S::kX + i * kBoxBytes, column + i * kBoxFeatures, row);
    }
  }
}

// ---- dz ----

struct Unit {
  uint32_t word[4];

  __device__ __forceinline__ void load(uint32_t address) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(address)
                 : "memory");
  }
  __device__ __forceinline__ void store(uint32_t address) const {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(word[0]),
                 "r"(word[1]), "r"(word[2]), "r"(word[3])
                 : "memory");
  }
};

template <class T>
__device__ __forceinline__ float2 unpacked(uint32_t pair) {
  if constexpr (__is_same(T, __half)) {
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  } else {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  }
}

// Turns dy into dz and adds it to `sum`, the sums of the thread's columns.
template <class T, Activation kActivation>
__device__ __forceinline__ void gradient_of(Unit& dy, const Unit& saved, float (&sum)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float2 z = unpacked<T>(dy.word[i]);
    if constexpr (kActivation != Activation::kNone) {
      const float2 s = unpacked<T>(saved.word[i]);
      z.x = activation_gradient_as<kActivation, kAccuracyOf<T>>(z.x, s.x);
      z.y = activation_gradient_as<kActivation, kAccuracyOf<T>>(z.y, s.y);
      dy.word[i] = rounded<T>(z.x, z.y);
    }
    sum[2 * i] += z.x;
    sum[2 * i + 1] += z.y;
  }
}

// Gives put(offset, unit) each unit of dz of this thread; the offset is that of dy's unit in the
// stage.
template <class T, class S, Activation kActivation, class Put>
__device__ __forceinline__ void gradient_as(Activation activation, uint32_t stage, float (&sum)[8],
                                            const Put& put) {
  constexpr int kMost = kActivation == kAnyRare ? 1 : 4;
  constexpr int kBatch = S::kPasses < kMost ? S::kPasses : kMost;
  const int unit = threadIdx.x % S::kUnits, row0 = threadIdx.x / S::kUnits;
#pragma unroll 1
  for (int pass = 0; pass < S::kPasses; pass += kBatch) {
    Unit dy[kBatch], saved[kBatch];
    uint32_t at[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = row0 + (pass + i) * S::kRowStep;
      at[i] = unit / 8 * kBoxBytes + row * kBoxRowBytes + ((unit ^ row) & 7) * 16;
      dy[i].load(stage + at[i]);
      if constexpr (kActivation != Activation::kNone) saved[i].load(stage + S::kSaved + at[i]);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      resolve_rare<kActivation>(
          activation, [&]<Activation kNow>() { gradient_of<T, kNow>(dy[i], saved[i], sum); });
      put(at[i], dy[i]);
    }
  }
}

// relu first: a switch reads its jump table from memory.
template <class T, class S, class Put>
__device__ __forceinline__ void gradient(Activation activation, uint32_t stage, float (&sum)[8],
                                         const Put& put) {
  if (activation == Activation::kRelu) {
    gradient_as<T, S, Activation::kRelu>(activation, stage, sum, put);
  } else {
    with_activation(activation, [&]<Activation kActivation>() {
      gradient_as<T, S, kActivation>(activation, stage, sum, put);
    });
  }
}

// ---- products ----

// dx (64, 64): this warpgroup's columns, which are those of `weight`.
template <class T, class S>
__device__ __forceinline__ void multiply_dx(float (&dx)[32], uint32_t dz, uint32_t weight) {
#pragma unroll
  for (int i = 0; i < 32; ++i) dx[i] = 0;
  wgmma::fence();
#pragma unroll
  for (int i = 0; i < S::kNBoxes * 4; ++i) {
    wgmma::multiply<T, 64, false, true>(
        dx, wgmma::descriptor(dz + i / 4 * kBoxBytes) + i % 4 * wgmma::kStepK,
        wgmma::descriptor(weight) + i * wgmma::kStepRows);
  }
  wgmma::commit();
}

template <class S>
using Sums = float[S::kParts][S::kColumns / 2];

template <class T, class S>
__device__ __forceinline__ void multiply_dweight(Sums<S>& sums, uint32_t dz, uint32_t x) {
  const int group = wgmma::warpgroup();
  (S::kByRows ? dz : x) += group * (S::kByRows ? S::kParts : 1) * kBoxBytes;
  wgmma::fence();
#pragma unroll
  for (int i = 0; i < S::kParts; ++i) {
#pragma unroll
    for (int j = 0; j < kTileRows / 16; ++j) {
      wgmma::multiply<T, S::kColumns, true, true>(
          sums[i], wgmma::descriptor(dz + i * kBoxBytes) + j * wgmma::kStepRows,
          wgmma::descriptor(x, kBoxBytes) + j * wgmma::kStepRows);
    }
  }
  wgmma::commit();
}

// Starts the copy of this warpgroup's dx to memory, by way of its box at `to`.
template <class T>
__device__ __forceinline__ void store_dx(const Problem& p, const Maps& maps, const float (&dx)[32],
                                         void* box, int row, int column) {
  const int lane = threadIdx.x % 32, group = threadIdx.x / 128;
  const int line = threadIdx.x % 128 / 32 * 16 + lane % 16;
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(box)) + line * kBoxRowBytes;
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const float* v = dx + 4 * i;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     to + ((i + lane / 16) ^ (line & 7)) * 16),
                 "r"(rounded<T>(v[0], v[1])), "r"(rounded<T>(v[2], v[3])),
                 "r"(rounded<T>(v[4], v[5])), "r"(rounded<T>(v[6], v[7]))
                 : "memory");
  }
  fence_async_copies();
  named_barrier<128>(2 + group);
  if (threadIdx.x % 128 != 0 || column >= p.k) return;
  cute::SM90_TMA_STORE_2D::copy(&maps.dx, box, column, row);
  cute::tma_store_arrive();
}

template <class T, class S>
__device__ void multiply_tiles(const Problem& p, const Maps& maps, const Shared<S>& shared,
                               int slot, int column, Sums<S>& sums, float (&bias_sum)[8]) {
  const int group = wgmma::warpgroup();
  const uint32_t weight = shared.weight + group * S::kNBoxes * kBoxBytes;
  if (p.needs_dx) wait_barrier(shared.weight_full(), 0);
  Place place;
  for (int tile = slot; tile < p.tiles; tile += p.slots, place.advance(S::kStages)) {
    const uint32_t stage = shared.stage(place.stage);
    wait_barrier(shared.full(place.stage), place.parity);
    if (p.activation != Activation::kNone || p.needs_dbias) {
      gradient<T, S>(p.activation, stage, bias_sum,
                     [&](uint32_t at, const Unit& dz) { dz.store(stage + at); });
    }
    fence_async_copies();
    named_barrier<S::kMultipliers>(1);
    if (p.needs_dx) {
      float dx[32];
      multiply_dx<T, S>(dx, stage, weight);
      if (p.needs_dweight) {
        multiply_dweight<T, S>(sums, stage, stage + S::kX);
        wgmma::wait<1>();
      } else {
        wgmma::wait<0>();
      }
      wgmma::settle(dx);
      // What was saved makes room.
      store_dx<T>(p, maps, dx, shared.at(stage + S::kSaved + group * kBoxBytes), tile * kTileRows,
                  column + group * kBoxFeatures);
    } else if (p.needs_dweight) {
      multiply_dweight<T, S>(sums, stage, stage + S::kX);
    }
    wgmma::wait<0>();
    if (threadIdx.x % 128 == 0) cute::tma_store_wait<0>();
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(shared.empty(place.stage));
  }
#pragma unroll
  for (int i = 0; i < S::kParts; ++i) wgmma::settle(sums[i]);
}

// ---- sums over rows ----

template <class S>
__device__ __forceinline__ void store_sums(const Problem& p, float* partial, const Sums<S>& sums,
                                           int column) {
  const int lane = threadIdx.x % 32, group = threadIdx.x / 128;
  const int row0 = (S::kByRows ? group * S::kParts * kBoxFeatures : 0) +
                   int(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  const int column0 = column + (S::kByRows ? 0 : group * kBoxFeatures);
#pragma unroll
  for (int i = 0; i < S::kParts; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + i * kBoxFeatures + half * 8;
      if (row >= p.n) continue;
      float* to = partial + row * p.k + column0 + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < S::kColumns / 8; ++j) {
        if (column0 + j * 8 >= p.k) break;
        const float* v = sums[i] + 4 * j + 2 * half;
        *reinterpret_cast<float2*>(to + j * 8) = float2{v[0], v[1]};
      }
    }
  }
}

// Adds the sums of the threads that had the same columns, in order. all (kRowStep, 8 kUnits):
// shared memory.
template <class S>
__device__ void store_bias_sums(float* partial, int columns, const float (&sum)[8], float* all) {
  constexpr int kWidth = S::kUnits * 8;
  named_barrier<S::kMultipliers>(1);
#pragma unroll
  for (int i = 0; i < 8; ++i) all[threadIdx.x * 8 + i] = sum[i];
  named_barrier<S::kMultipliers>(1);
  for (int c = threadIdx.x; c < columns; c += S::kMultipliers) {
    double total = 0;
    for (int row = 0; row < S::kRowStep; ++row) total += all[row * kWidth + c];
    partial[c] = static_cast<float>(total);
  }
}

// ---- the kernels ----

template <class S>
__device__ __forceinline__ void init_barriers(const Shared<S>& shared) {
  for (int i = 0; i < S::kStages; ++i) {
    init_barrier(shared.full(i), 1);
    init_barrier(shared.empty(i), S::kMultipliers / 32);
  }
  init_barrier(shared.weight_full(), 1);
  fence_barrier_init();
}

template <class T, class S>
__global__ void __launch_bounds__(S::kThreads, S::kPerSm)
    narrow_kernel(const Problem p, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const Shared<S> shared(shared_bytes);
  const int slot = int(blockIdx.x) / p.chunks, chunk = int(blockIdx.x) % p.chunks;
  const int column = chunk * S::kKBoxes * kBoxFeatures;
  if (threadIdx.x == S::kMultipliers) init_barriers(shared);
  __syncthreads();
  wait_for_predecessor();
  if (threadIdx.x >= S::kMultipliers) {
    if constexpr (S::kManySums) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == S::kMultipliers) copy_tiles<S>(p, maps, shared, slot, column);
    return;
  }
  if constexpr (S::kManySums) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  Sums<S> sums = {};
  float bias_sum[8] = {};
  multiply_tiles<T, S>(p, maps, shared, slot, column, sums, bias_sum);
  float* partial = p.partial + slot * p.width;
  if (p.needs_dweight) {
    store_sums<S>(p, partial, sums, column);
    partial += int64_t{p.n} * p.k;
  }
  if (p.needs_dbias && chunk == 0) {
    store_bias_sums<S>(partial, p.n, bias_sum, shared.template at<float>(shared.stages));
  }
}

inline constexpr int kSumX = 32, kSumY = 16;

// dweight (weights,), then dbias, = the sums of partial (rows, width) over rows, in a fixed order.
// A thread takes kVec columns; width and weights are multiples of it.
template <class Out, int kVec>
__global__ void __launch_bounds__(kSumX* kSumY)
    narrow_sum_kernel(const float* partial, int64_t rows, int64_t width, Out* dweight,
                      int64_t weights, Out* dbias) {
  using V = Vec<float, kVec>;
  constexpr int kBatch = kVec == 1 ? 8 : 4;
  __shared__ double shared[kSumY][kSumX * kVec];
  wait_for_predecessor();
  const int64_t col0 = int64_t{blockIdx.x} * kSumX * kVec;
  const int64_t mine = col0 + threadIdx.x * kVec;
  double sum[kVec] = {};
  for (int64_t first = threadIdx.y; first < rows && mine < width; first += kSumY * kBatch) {
    // NOTE: clamped addresses, not predicates: the compiler would wait for one load at a time.
    V part[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t row = min(first + i * kSumY, rows - 1);
      part[i] = *reinterpret_cast<const V*>(partial + row * width + mine);
    }
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      float batch = 0;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        batch += first + i * kSumY < rows ? part[i].value[j] : 0.0f;
      }
      sum[j] += batch;
    }
  }
#pragma unroll
  for (int j = 0; j < kVec; ++j) shared[threadIdx.y][threadIdx.x * kVec + j] = sum[j];
  __syncthreads();
  const int c = threadIdx.y * kSumX + threadIdx.x;
  const int64_t col = col0 + c;
  if (c >= kSumX * kVec || col >= width) return;
  double total = 0;
  for (int y = 0; y < kSumY; ++y) total += shared[y][c];
  (col < weights ? dweight[col] : dbias[col - weights]) =
      from_compute<Out>(static_cast<float>(total));
}

}  // namespace fusedops::narrow
