// Lists the entries of each destination in ascending order, by counting: for index arrays of up to
// kMaxCounted entries per cloud, where a radix sort is all launch latency.
//
// A CTA lists one range of a cloud's destinations. It takes the entries chunk by chunk; its warps
// have consecutive parts of a chunk and count destinations in their own counters, where an entry
// finds its place among the warp's. Sums over the warps before and the lists' starts complete it,
// so that no list has to be sorted, however long it is.
#pragma once

#include <algorithm>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/grid_limits.h"
#include "csrc/common/int_math.h"
#include "csrc/cuda/inverted_index/indices.cuh"

namespace fusedops {

inline constexpr int kInvertThreads = 1024;
inline constexpr int kInvertWarps = kInvertThreads / 32;
inline constexpr int kInvertUnroll = 8;
inline constexpr int kInvertSteps = 20;      // entries of a lane and chunk
inline constexpr int kInvertLoads = 4;       // of them at a time
inline constexpr int kInvertPlaceBits = 10;  // of an entry's place among those of its warp
inline constexpr int64_t kInvertChunk = int64_t{kInvertSteps} * kInvertThreads;
inline constexpr int64_t kMaxCounted = 1 << 18;
inline constexpr int64_t kMaxCounters = 1 << 11;  // destinations of a CTA
inline constexpr int64_t kMaxParts = 256;         // CTAs that read the same indices

static_assert(32 * kInvertSteps < 1 << kInvertPlaceBits && kInvertChunk < 1 << 16);

struct InvertIndex {
  Indices idx;  // [clouds][entries]
  int64_t clouds, n, entries;
  int64_t part;      // destinations of a CTA
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
};

// A CTA's share: destinations low .. low + count of cloud b.
struct InvertPart {
  const InvertIndex& a;
  int64_t first;  // the cloud's first entry
  int64_t low;
  int count, pitch;    // pitch: of a warp's counters, an even number
  uint32_t* counters;  // [count]: how many, then where the next one goes
  uint16_t* of_warp;   // [kInvertWarps][pitch]
  uint32_t below;      // the thread's entries of smaller destinations

  __device__ __forceinline__ int destination(int64_t row) const {
    return row >= low && row < low + count ? static_cast<int>(row - low) : -1;
  }

  __device__ __forceinline__ void count_all() {
    for_each_entry(a.idx, first, a.entries, [&](uint32_t, int64_t row) {
      const int d = destination(row);
      if (d >= 0) atomicAdd(counters + d, 1u);
      if (row >= 0 && row < low) ++below;
    });
    __syncthreads();
  }

  // Entries `start` to `end` of the cloud, a warp's 32 * steps in a piece: their destinations and
  // places among the warp's entries of that destination, packed, ~0 where they have none.
  template <bool kCounts>
  __device__ __forceinline__ void rank_chunk(int64_t start, int64_t end, int steps,
                                             uint32_t (&ranked)[kInvertSteps]) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    uint16_t* own = of_warp + warp * pitch;
    const int64_t base = start + int64_t{warp} * steps * 32 + lane;
#pragma unroll
    for (int s = 0; s < kInvertSteps; s += kInvertLoads) {
      int64_t row[kInvertLoads];
#pragma unroll
      for (int u = 0; u < kInvertLoads; ++u) {
        const int64_t i = base + (s + u) * 32;
        row[u] = s + u < steps && i < end ? a.idx[first + i] : -1;
      }
#pragma unroll
      for (int u = 0; u < kInvertLoads; ++u) {
        ranked[s + u] = ~0u;
        if (s + u >= steps) continue;
        const int d = destination(row[u]);
        if (kCounts && row[u] >= 0 && row[u] < low) ++below;
        const unsigned peers = __match_any_sync(0xffffffffu, d);
        if (d >= 0) {
          const uint32_t before = own[d];
          ranked[s + u] = static_cast<uint32_t>(d) << kInvertPlaceBits |
                          (before + __popc(peers & ((1u << lane) - 1)));
        }
        __syncwarp();
        if (d >= 0 && lane == __ffs(static_cast<int>(peers)) - 1) {
          own[d] = static_cast<uint16_t>(own[d] + __popc(peers));
        }
        __syncwarp();
      }
    }
  }

  __device__ __forceinline__ void clear_warps() {
    auto* words = reinterpret_cast<uint32_t*>(of_warp);
    for (int i = static_cast<int>(threadIdx.x); i < kInvertWarps * pitch / 2; i += kInvertThreads) {
      words[i] = 0;
    }
    __syncthreads();
  }

  // Counters of the warps become sums over the warps before; the destination's total.
  __device__ __forceinline__ uint32_t sum_warps(int d) {
    uint32_t sum = 0;
#pragma unroll 8
    for (int w = 0; w < kInvertWarps; ++w) {
      const uint32_t own = of_warp[w * pitch + d];
      of_warp[w * pitch + d] = static_cast<uint16_t>(sum);
      sum += own;
    }
    return sum;
  }

  // Counters become the lists' starts; ranges are written. Lists begin at `base` of the result.
  __device__ __forceinline__ uint32_t place_lists(uint2* ranges, InvertShared& shared) {
    uint32_t base, total;
    block_scan(below, shared.warps, base);
    base += static_cast<uint32_t>(first);
    const int share = static_cast<int>(ceil_div(count, kInvertThreads));
    const int begin = min(static_cast<int>(threadIdx.x) * share, count);
    const int end = min(begin + share, count);
    uint32_t sum = 0;
    for (int d = begin; d < end; ++d) sum += counters[d];
    uint32_t start = block_scan(sum, shared.warps, total);
    for (int d = begin; d < end; ++d) {
      const uint32_t size = counters[d];
      counters[d] = start;
      ranges[d] = {base + start, base + start + size};
      start += size;
    }
    __syncthreads();
    return base;
  }

  __device__ __forceinline__ void run(uint2* ranges, InvertShared& shared) {
    constexpr int kMine = static_cast<int>(kMaxCounters / kInvertThreads);
    const bool single = a.entries <= kInvertChunk;
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    uint32_t base = 0;
    if (!single) {
      count_all();
      base = place_lists(ranges, shared);
    }
    for (int64_t start = 0; start < a.entries; start += kInvertChunk) {
      const int64_t end = min(start + kInvertChunk, a.entries);
      const int steps = static_cast<int>(ceil_div(end - start, int64_t{kInvertThreads}));
      uint32_t ranked[kInvertSteps], total[kMine];
      clear_warps();
      if (single) {
        rank_chunk<true>(start, end, steps, ranked);
      } else {
        rank_chunk<false>(start, end, steps, ranked);
      }
      __syncthreads();
#pragma unroll
      for (int m = 0; m < kMine; ++m) {
        const int d = static_cast<int>(threadIdx.x) + m * kInvertThreads;
        total[m] = d < count ? sum_warps(d) : 0;
        if (single && d < count) counters[d] = total[m];
      }
      __syncthreads();
      if (single) base = place_lists(ranges, shared);
      const int64_t mine = start + int64_t{warp} * steps * 32 + lane;
#pragma unroll
      for (int s = 0; s < kInvertSteps; ++s) {
        if (ranked[s] == ~0u) continue;
        const int d = static_cast<int>(ranked[s] >> kInvertPlaceBits);
        const uint32_t place = ranked[s] & ((1u << kInvertPlaceBits) - 1);
        const uint32_t at = base + counters[d] + of_warp[warp * pitch + d] + place;
        a.result[at] = static_cast<uint32_t>(first + mine + s * 32);
      }
      __syncthreads();
#pragma unroll
      for (int m = 0; m < kMine; ++m) {
        const int d = static_cast<int>(threadIdx.x) + m * kInvertThreads;
        if (d < count) counters[d] += total[m];
      }
      __syncthreads();
    }
  }
};

__host__ __device__ constexpr int64_t invert_pitch(int64_t part) { return (part + 1) / 2 * 2; }

__global__ void __launch_bounds__(kInvertThreads) invert_index_kernel(InvertIndex a) {
  extern __shared__ uint32_t counters[];  // [part], then those of the warps
  __shared__ InvertShared shared;
  const int64_t low = blockIdx.x * a.part;
  const int count = static_cast<int>(min(a.part, a.n - low));
  for (int64_t b = blockIdx.y; b < a.clouds; b += gridDim.y) {
    for (int d = static_cast<int>(threadIdx.x); d < count; d += kInvertThreads) counters[d] = 0;
    __syncthreads();
    InvertPart part{a,
                    b * a.entries,
                    low,
                    count,
                    static_cast<int>(invert_pitch(a.part)),
                    counters,
                    reinterpret_cast<uint16_t*>(counters + a.part),
                    0};
    part.run(a.ranges + b * a.n + low, shared);
  }
}

// Destinations of a CTA: enough CTAs for the device, few readers of the same indices.
inline int64_t invert_part_size(int64_t clouds, int64_t n, int sm_count) {
  const int64_t wanted = std::clamp<int64_t>(sm_count / std::max<int64_t>(clouds, 1), 1, 16);
  return ceil_div(n, std::max(std::min(wanted, n), ceil_div(n, kMaxCounters)));
}

inline size_t invert_shared_bytes(int64_t part) {
  return sizeof(uint32_t) * static_cast<size_t>(part) +
         sizeof(uint16_t) * static_cast<size_t>(kInvertWarps * invert_pitch(part));
}

// Whether this way serves; if not, sort.
inline bool can_invert(int64_t clouds, int64_t n, int64_t entries, int sm_count, int shared_bytes) {
  const int64_t part = invert_part_size(clouds, n, sm_count);
  return entries <= kMaxCounted && ceil_div(n, part) <= kMaxParts &&
         invert_shared_bytes(part) + sizeof(InvertShared) <= size_t(shared_bytes);
}

// Leaves its errors to check_launch.
inline void launch_invert_index(InvertIndex a, int sm_count, cudaStream_t stream) {
  a.part = invert_part_size(a.clouds, a.n, sm_count);
  allow_any_shared_memory<&invert_index_kernel>();
  const dim3 grid(static_cast<unsigned>(ceil_div(a.n, a.part)),
                  static_cast<unsigned>(std::min(a.clouds, kMaxGridY)));
  invert_index_kernel<<<grid, kInvertThreads, invert_shared_bytes(a.part), stream>>>(a);
}

}  // namespace fusedops
