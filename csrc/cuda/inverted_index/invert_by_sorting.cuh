// Lists the entries of each destination in ascending order, by a stable sort: for index arrays of
// any size.
#pragma once

#include <algorithm>

#include "csrc/common/grid_limits.h"
#include "csrc/common/int_math.h"
#include "csrc/cuda/inverted_index/indices.cuh"

namespace fusedops {

inline constexpr int kSortThreads = 256;

// Keys: the destination row, or `clouds * n` where idx is no row. Values: the entry.
__global__ void __launch_bounds__(kSortThreads)
    inverted_keys_kernel(Indices idx, int64_t clouds, int64_t n, int64_t entries,
                         uint32_t* __restrict__ keys, uint32_t* __restrict__ values) {
  const int64_t i = int64_t{blockIdx.x} * kSortThreads + threadIdx.x;  // within the cloud
  if (i >= entries) return;
  for (int64_t b = blockIdx.y; b < clouds; b += gridDim.y) {
    const int64_t row = idx[b * entries + i];
    const bool valid = row >= 0 && row < n;
    keys[b * entries + i] = static_cast<uint32_t>(valid ? b * n + row : clouds * n);
    values[b * entries + i] = static_cast<uint32_t>(b * entries + i);
  }
}

// ranges[d] = first and last + 1 of destination d in the sorted keys; zeroed before.
__global__ void __launch_bounds__(kSortThreads)
    inverted_ranges_kernel(const uint32_t* __restrict__ keys, int64_t count, int64_t destinations,
                           uint2* __restrict__ ranges) {
  const int64_t i = int64_t{blockIdx.x} * kSortThreads + threadIdx.x;
  if (i >= count) return;
  const uint32_t key = keys[i];
  if (key >= destinations) return;
  if (i == 0 || keys[i - 1] != key) ranges[key].x = static_cast<unsigned>(i);
  if (i == count - 1 || keys[i + 1] != key) ranges[key].y = static_cast<unsigned>(i + 1);
}

// The launchers leave their errors to check_launch.
inline void launch_inverted_keys(Indices idx, int64_t clouds, int64_t n, int64_t entries,
                                 uint32_t* keys, uint32_t* values, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(entries, kSortThreads)),
                  static_cast<unsigned>(std::min(clouds, kMaxGridY)));
  inverted_keys_kernel<<<grid, kSortThreads, 0, stream>>>(idx, clouds, n, entries, keys, values);
}

inline void launch_inverted_ranges(const uint32_t* keys, int64_t count, int64_t destinations,
                                   uint2* ranges, cudaStream_t stream) {
  inverted_ranges_kernel<<<static_cast<unsigned>(ceil_div(count, kSortThreads)), kSortThreads, 0,
                           stream>>>(keys, count, destinations, ranges);
}

}  // namespace fusedops
