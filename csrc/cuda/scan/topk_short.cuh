// The k largest or smallest elements of short rows: lanes of a warp sort a row in registers, many
// rows to a warp where they are shorter than it. Keys as in topk.cuh.
#pragma once

#include "csrc/common/device/pdl.cuh"
#include "csrc/cuda/scan/topk.cuh"

namespace fusedops {

inline constexpr int kShortTopk = 128;  // elements of a row; a block selects from longer ones
inline constexpr int kShortTopkThreads = 128;  // of a block

// Descending order of two keys, or ascending.
template <class Key>
__device__ __forceinline__ void order_keys(Key& first, Key& second, bool descending) {
  const Key a = first, b = second;
  const bool swap = b.above(a) == descending;
  first = swap ? b : a;
  second = swap ? a : b;
}

// The steps of a bitonic sort that stay inside of a lane, which holds kItems neighbours.
template <int kItems, class Key>
__device__ __forceinline__ void merge_items(Key (&item)[kItems], int lane, int span) {
#pragma unroll
  for (int stride = kItems / 2; stride > 0; stride /= 2) {
    if (stride >= span) continue;
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if ((j & stride) == 0) {
        order_keys(item[j], item[j + stride], ((lane * kItems + j) & span) == 0);
      }
    }
  }
}

__device__ __forceinline__ NarrowKey key_of_lane(const NarrowKey& key, int mask) {
  return {__shfl_xor_sync(~0u, key.word, mask)};
}
__device__ __forceinline__ WideKey key_of_lane(const WideKey& key, int mask) {
  return {__shfl_xor_sync(~0u, key.high, mask), __shfl_xor_sync(~0u, key.low, mask)};
}

// Descending bitonic sort of the lanes * kItems keys that `lanes` neighbours hold.
template <int kItems, class Key>
__device__ __forceinline__ void sort_lanes(Key (&item)[kItems], int lane, int lanes) {
#pragma unroll
  for (int span = 2; span <= kItems; span *= 2) merge_items(item, lane, span);
  for (int span = 2; span <= lanes; span *= 2) {
    const bool descending = (lane & span) == 0;
    for (int reach = span / 2; reach > 0; reach /= 2) {
      const bool larger = ((lane & reach) == 0) == descending;  // the one of two that stays here
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        const Key other = key_of_lane(item[j], reach);
        if (other.above(item[j]) == larger) item[j] = other;
      }
    }
    merge_items(item, lane, span * kItems);
  }
}

// `lanes` of a warp hold a row of at most lanes * kItems elements.
template <class T, int kItems>
__global__ void __launch_bounds__(kShortTopkThreads)
    topk_short_kernel(const Topk<T> p, bool largest, int lanes) {
  using Key = TopkKey<T>;
  wait_for_predecessor();
  const int lane = static_cast<int>(threadIdx.x) % lanes, team = threadIdx.x / lanes;
  const int in_warp = static_cast<int>(threadIdx.x) % 32 / lanes, n = static_cast<int>(p.n);
  const int64_t teams = kShortTopkThreads / lanes;
  // NOTE: the same for a whole warp, whose lanes shuffle together.
  for (int64_t base = blockIdx.x * teams; base + team - in_warp < p.rows;
       base += gridDim.x * teams) {
    const int64_t row = base + team;
    const T* const x = p.x + row * p.x_stride;
    Key item[kItems];
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const int i = j * lanes + lane;
      item[j] = Key{};
      if (row < p.rows && i < n) item[j] = Key::make(ordered_bits(x[i], largest), i);
    }
    sort_lanes(item, lane, lanes);
    if (row >= p.rows) continue;
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const int place = lane * kItems + j;
      if (place >= p.k) break;
      p.values[row * p.k + place] = x[item[j].index()];
      p.indices[row * p.k + place] = item[j].index();
    }
  }
}

template <class T>
void launch_topk_short(const Topk<T>& p, bool largest, bool overlap, cudaStream_t stream) {
  int lanes = 1;
  while (lanes < 32 && lanes < p.n) lanes *= 2;
  const int64_t blocks =
      std::min<int64_t>(ceil_div(p.rows, int64_t{kShortTopkThreads / lanes}), kMaxGrid);
  const auto kernel = p.n <= 32   ? topk_short_kernel<T, 1>
                      : p.n <= 64 ? topk_short_kernel<T, 2>
                                  : topk_short_kernel<T, kShortTopk / 32>;
  launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kShortTopkThreads), 0, stream,
                overlap, p, largest, lanes);
}

}  // namespace fusedops
