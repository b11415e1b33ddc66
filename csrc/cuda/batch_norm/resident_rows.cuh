// What batch norm in one kernel is built of: rows that a thread copies into shared memory once and
// reads twice, and sums over the blocks of a grid that is resident as a whole, which exchange them
// through memory.
#pragma once

#include <cooperative_groups.h>

#include "csrc/common/device/async_copy.cuh"
#include "csrc/cuda/batch_norm/batch_norm_pass.cuh"

namespace fusedops {

inline constexpr int kResidentThreads = 512;
inline constexpr int kResidentDepth = 4;       // groups of rows on their way at once
inline constexpr int kResidentChannels = 256;  // the most of a block

// The rows of a thread: the first `slots` stay in shared memory, where no other thread reads them.
template <class T, int kInputs>
struct ResidentRows {
  static constexpr int kVec = 16 / sizeof(T);
  using V = Vec<T, kVec>;
  const T* in[kInputs];  // (rows, channels) each
  uint4* kept;           // the first of this thread's slots
  int64_t first, step;   // elements: of the first row, and from one to the next
  int count, slots;

  __device__ __forceinline__ ResidentRows(const T* const (&from)[kInputs], uint4* shared, int room,
                                          const WalkGrid& grid, const WalkPlace& at,
                                          int64_t channels)
      : kept(shared + threadIdx.x),
        first((at.row_begin + at.ty) * channels + at.col),
        step(grid.threads_y * channels),
        count(0),
        slots(room) {
#pragma unroll
    for (int i = 0; i < kInputs; ++i) in[i] = from[i];
    const int64_t left = at.row_end - at.row_begin - at.ty;
    if (at.active && left > 0) count = static_cast<int>(ceil_div(left, int64_t{grid.threads_y}));
  }

  __device__ __forceinline__ uint4* slot(int input, int k) const {
    return kept + (k * kInputs + input) * kResidentThreads;
  }
  __device__ __forceinline__ int64_t element(int k) const { return first + k * step; }
  __device__ __forceinline__ bool stays(int k) const { return k < slots; }

  // Begins to copy kUnroll rows from k0 on.
  template <int kUnroll>
  __device__ __forceinline__ void copy(int k0) const {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int k = k0 + u;
      if (k >= count || !stays(k)) break;
#pragma unroll
      for (int i = 0; i < kInputs; ++i) copy_async(shared_address(slot(i, k)), in[i] + element(k));
    }
    commit_copies();
  }

  template <class Value>
  __device__ __forceinline__ Value take(int input, int k) const {
    const void* from = in[input] + element(k);
    if (stays(k)) from = slot(input, k);
    return *static_cast<const Value*>(from);
  }

  // Calls prepare() once, then body(values of every input, count of them that are rows, k) for
  // kUnroll rows at a time, in order.
  template <int kUnroll, class Prepare, class Body>
  __device__ __forceinline__ void walk(Prepare&& prepare, Body&& body) const {
#pragma unroll
    for (int d = 0; d < kResidentDepth; ++d) copy<kUnroll>(d * kUnroll);
    prepare();
    for (int k0 = 0; k0 < count; k0 += kUnroll) {
      wait_for_copies<kResidentDepth - 1>();
      V values[kInputs][kUnroll];
      const int some = min(kUnroll, count - k0);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (u >= some) break;
#pragma unroll
        for (int i = 0; i < kInputs; ++i) values[i][u] = take<V>(i, k0 + u);
      }
      body(values, some, k0);
      copy<kUnroll>(k0 + kResidentDepth * kUnroll);
    }
  }

  // Calls body(k0, count of rows from there) from the last rows, which a cache may still hold, to
  // the first.
  template <int kUnroll, class Body>
  __device__ __forceinline__ void walk_back(Body&& body) const {
    for (int k0 = (count - 1) / kUnroll * kUnroll; k0 >= 0 && count > 0; k0 -= kUnroll) {
      body(k0, min(kUnroll, count - k0));
    }
  }
};

// What a block keeps beside its rows.
struct ResidentShared {
  float scratch[kResidentThreads * 8];
  double groups[kResidentThreads];
  double sums[2][kResidentChannels];  // of this block
  float reference[kResidentChannels];
};

// sums[s][channel] over the rows of threads of a block, in a fixed order.
template <int kVec>
__device__ __forceinline__ void resident_block_sums(const WalkGrid& grid, const WalkPlace& at,
                                                    const float (&sums)[2][kVec],
                                                    ResidentShared& shared) {
  const int width = grid.threads_x * kVec;
  const int groups = kResidentThreads / width;
  const int group = threadIdx.x / width, own = threadIdx.x % width;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    if (at.ty < grid.threads_y) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        shared.scratch[at.ty * width + at.tx * kVec + i] = sums[s][i];
      }
    }
    __syncthreads();
    if (group < groups) {
      double total = 0;
      for (int y = group; y < grid.threads_y; y += groups) total += shared.scratch[y * width + own];
      shared.groups[group * width + own] = total;
    }
    __syncthreads();
    if (group == 0) {
      double total = 0;
      for (int g = 0; g < groups; ++g) total += shared.groups[g * width + own];
      shared.sums[s][own] = total;
    }
  }
  __syncthreads();
}

// Leaves what this block found of its channels where all blocks can read it.
__device__ __forceinline__ void share_sums(const PassProblem& p, const WalkPlace& at, int width,
                                           int64_t channel, const ResidentShared& shared) {
  const int own = threadIdx.x;
  if (own >= width || channel >= p.channels) return;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    p.partial[(s * p.channels + channel) * p.grid.row_blocks + at.row_block] = shared.sums[s][own];
  }
}

// Calls join(channel) for each channel once, with a whole warp of the grid, between two barriers.
template <class Join>
__device__ __forceinline__ void join_channels(int64_t channels, Join&& join) {
  constexpr int kWarps = kResidentThreads / 32;
  cooperative_groups::this_grid().sync();
  for (int64_t c = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; c < channels;
       c += int64_t{gridDim.x} * kWarps) {
    join(c);
  }
  cooperative_groups::this_grid().sync();
}

}  // namespace fusedops
