// Lists the entries of each destination in ascending order, by counting: for index arrays of up to
// kMaxCounted entries per cloud, where a radix sort is all launch latency.
//
// A CTA lists one range of a cloud's destinations: counts them, places the entries as they come,
// and puts every list in order, short lists by rank, long ones through a bitmap of the entries.
#pragma once

#include <algorithm>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/grid_limits.h"
#include "csrc/common/int_math.h"
#include "csrc/cuda/inverted_index/indices.cuh"

namespace fusedops {

inline constexpr int kInvertThreads = 1024;
inline constexpr int kInvertUnroll = 16;
inline constexpr int64_t kMaxCounted = 1 << 18;
inline constexpr int64_t kMaxCounters = 1 << 13;  // destinations of a CTA
inline constexpr uint32_t kStaged = 8192;         // entries of a CTA that stay in shared memory
inline constexpr uint32_t kMaxRanked = 128;       // entries of a list that is ordered by rank
inline constexpr int kMaxLong = kMaxCounted / kMaxRanked;

struct InvertIndex {
  Indices idx;  // [clouds][entries]
  int64_t clouds, n, entries;
  int64_t part;      // destinations of a CTA
  uint2* placed;     // [clouds][entries] scratch: entry and destination
  uint32_t* result;  // [clouds][entries]: b * entries + i, by destination
  uint2* ranges;     // [clouds][n] in result
};

// Exclusive sum over the CTA; the total in `total`. Every thread calls it.
__device__ __forceinline__ uint32_t block_scan(uint32_t value, uint32_t* warps, uint32_t& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = value;
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // `warps` is free
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  uint32_t below = lane < warp ? warps[lane] : 0, all = warps[lane];
  total = __reduce_add_sync(0xffffffffu, all);
  return __reduce_add_sync(0xffffffffu, below) + sum - value;
}

// fn(i, destination) for every entry of the cloud, several loads in flight. `first` is the cloud's
// first entry in idx.
template <typename Fn>
__device__ __forceinline__ void for_each_entry(Indices idx, int64_t first, int64_t entries,
                                               Fn&& fn) {
  for (int64_t base = 0; base < entries; base += kInvertThreads * kInvertUnroll) {
    int64_t row[kInvertUnroll];
#pragma unroll
    for (int u = 0; u < kInvertUnroll; ++u) {
      const int64_t i = base + u * kInvertThreads + threadIdx.x;
      row[u] = i < entries ? idx[first + i] : -1;
    }
#pragma unroll
    for (int u = 0; u < kInvertUnroll; ++u) {
      fn(static_cast<uint32_t>(base + u * kInvertThreads + threadIdx.x), row[u]);
    }
  }
}

struct InvertShared {
  uint32_t warps[32];
  uint32_t listed, num_long;
  uint32_t long_lists[kMaxLong];
};

// Counters become the lists' starts; ranges are written.
__device__ __forceinline__ void place_lists(uint32_t* counters, int64_t count, uint32_t base,
                                            uint2* ranges, InvertShared& shared) {
  const int64_t share = ceil_div(count, kInvertThreads);
  const int64_t first = min(threadIdx.x * share, count), last = min(first + share, count);
  uint32_t sum = 0, total;
  for (int64_t d = first; d < last; ++d) sum += counters[d];
  uint32_t start = block_scan(sum, shared.warps, total);
  if (threadIdx.x == 0) shared.listed = total;
  for (int64_t d = first; d < last; ++d) {
    const uint32_t size = counters[d];
    counters[d] = start;
    ranges[d] = {base + start, base + start + size};
    if (size > kMaxRanked) shared.long_lists[atomicAdd(&shared.num_long, 1u)] = d;
    start += size;
  }
  __syncthreads();
}

// A list longer than kMaxRanked, by all threads.
__device__ void order_long_list(const uint2* list, uint32_t count, int words, uint32_t offset,
                                uint32_t* result, uint32_t* bitmap, InvertShared& shared) {
  for (int w = threadIdx.x; w < words; w += kInvertThreads) bitmap[w] = 0;
  __syncthreads();
  for (uint32_t p = threadIdx.x; p < count; p += kInvertThreads) {
    const uint32_t entry = list[p].x;
    atomicOr(bitmap + entry / 32, 1u << (entry % 32));
  }
  __syncthreads();
  const int share = static_cast<int>(ceil_div(words, kInvertThreads));
  const int first = min(static_cast<int>(threadIdx.x) * share, words);
  const int last = min(first + share, words);
  uint32_t sum = 0, total;
  for (int w = first; w < last; ++w) sum += __popc(bitmap[w]);
  uint32_t at = block_scan(sum, shared.warps, total);
  for (int w = first; w < last; ++w) {
    for (uint32_t rest = bitmap[w]; rest != 0; rest &= rest - 1) {
      result[at++] = offset + 32 * w + __ffs(static_cast<int>(rest)) - 1;
    }
  }
  __syncthreads();
}

// Entries of destinations low .. low + count of cloud b.
__device__ __forceinline__ void invert_part(const InvertIndex& a, int64_t b, int64_t low,
                                            int64_t count, uint2* staged, uint32_t* counters,
                                            uint32_t* bitmap, InvertShared& shared) {
  const int64_t first = b * a.entries;
  const auto offset = static_cast<uint32_t>(first);
  uint32_t below = 0, base;
  for_each_entry(a.idx, first, a.entries, [&](uint32_t, int64_t row) {
    if (row >= low && row < low + count) {
      atomicAdd(counters + (row - low), 1u);
    } else if (row >= 0 && row < low) {
      ++below;
    }
  });
  block_scan(below, shared.warps, base);
  base += offset;
  place_lists(counters, count, base, a.ranges + b * a.n + low, shared);

  uint2* list = shared.listed <= kStaged ? staged : a.placed + base;
  for_each_entry(a.idx, first, a.entries, [&](uint32_t i, int64_t row) {
    if (row >= low && row < low + count) {
      const auto d = static_cast<uint32_t>(row - low);
      list[atomicAdd(counters + d, 1u)] = {i, d};
    }
  });
  __syncthreads();  // counters hold the lists' ends now

  for (uint32_t p = threadIdx.x; p < shared.listed; p += kInvertThreads) {
    const auto [entry, d] = list[p];
    const uint32_t begin = d > 0 ? counters[d - 1] : 0, end = counters[d];
    if (end - begin > kMaxRanked) continue;
    uint32_t rank = 0;
#pragma unroll 4
    for (uint32_t q = begin; q < end; ++q) rank += list[q].x < entry;
    a.result[base + begin + rank] = offset + entry;
  }
  const int words = static_cast<int>(ceil_div(a.entries, 32));
  for (uint32_t i = 0; i < shared.num_long; ++i) {
    const uint32_t d = shared.long_lists[i];
    const uint32_t begin = d > 0 ? counters[d - 1] : 0;
    order_long_list(list + begin, counters[d] - begin, words, offset, a.result + base + begin,
                    bitmap, shared);
  }
}

__global__ void __launch_bounds__(kInvertThreads) invert_index_kernel(InvertIndex a) {
  extern __shared__ uint2 staged[];  // [kStaged], then the counters [part], then the bitmap
  __shared__ InvertShared shared;
  auto* counters = reinterpret_cast<uint32_t*>(staged + kStaged);
  const int64_t low = blockIdx.x * a.part, count = min(a.part, a.n - low);
  for (int64_t b = blockIdx.y; b < a.clouds; b += gridDim.y) {
    __syncthreads();  // the previous cloud is done
    for (int64_t d = threadIdx.x; d < count; d += kInvertThreads) counters[d] = 0;
    if (threadIdx.x == 0) shared.num_long = 0;
    __syncthreads();
    invert_part(a, b, low, count, staged, counters, counters + a.part, shared);
  }
}

// Destinations of a CTA: enough CTAs for the device, few readers of the same indices.
inline int64_t invert_part_size(int64_t clouds, int64_t n, int sm_count) {
  const int64_t wanted = std::clamp<int64_t>(sm_count / std::max<int64_t>(clouds, 1), 1, 16);
  return ceil_div(n, std::max(std::min(wanted, n), ceil_div(n, kMaxCounters)));
}

inline size_t invert_shared_bytes(int64_t part, int64_t entries) {
  return sizeof(uint2) * kStaged +
         sizeof(uint32_t) * static_cast<size_t>(part + ceil_div(entries, 32));
}

// Whether this way serves; if not, sort.
inline bool can_invert(int64_t clouds, int64_t n, int64_t entries, int sm_count, int shared_bytes) {
  const int64_t part = invert_part_size(clouds, n, sm_count);
  return entries <= kMaxCounted &&
         invert_shared_bytes(part, entries) + sizeof(InvertShared) <= size_t(shared_bytes);
}

// Leaves its errors to check_launch.
inline void launch_invert_index(InvertIndex a, int sm_count, cudaStream_t stream) {
  a.part = invert_part_size(a.clouds, a.n, sm_count);
  const size_t bytes = invert_shared_bytes(a.part, a.entries);
  allow_any_shared_memory<&invert_index_kernel>();
  const dim3 grid(static_cast<unsigned>(ceil_div(a.n, a.part)),
                  static_cast<unsigned>(std::min(a.clouds, kMaxGridY)));
  invert_index_kernel<<<grid, kInvertThreads, bytes, stream>>>(a);
}

}  // namespace fusedops
