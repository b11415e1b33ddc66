// Lists the entries of each destination in ascending order, by counting: for index arrays of up to
// kMaxCounted entries per cloud, where a radix sort is all launch latency.
//
// A CTA lists one range of a cloud's destinations. It takes the entries chunk by chunk; its warps
// have consecutive parts of a chunk and count destinations in their own counters, where an entry
// finds its place among the warp's. Sums over the warps before and the lists' starts complete it,
// so that no list has to be sorted, however long it is.
//
// Where a cloud has more than one chunk of entries, a kernel before it splits slices of them by the
// range that they belong to, in the same way: then a CTA reads only what it lists.
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

inline constexpr int kMaxSplit = 32;   // ranges or slices of a cloud, where its entries are split
inline constexpr int kEntryBits = 18;  // of an entry that is split

static_assert(kMaxCounted <= 1 << kEntryBits && kMaxCounters <= 1 << (31 - kEntryBits));
static_assert(32 * kInvertSteps < 1 << kInvertPlaceBits && kInvertChunk < 1 << 16);

struct InvertIndex {
  Indices idx;  // [clouds][entries]
  int64_t clouds, n, entries;
  int64_t part;      // destinations of a CTA
  int slices;        // of a cloud's entries that are split; 0: none are
  uint32_t* split;   // [clouds][entries]: those of a slice by range, destination and entry packed
  uint32_t* starts;  // [clouds][slices][ranges + 1]: where a range's entries begin in a slice
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

struct InvertShared {
  uint32_t warps[32];
  int begins[kMaxSplit + 1], places[kMaxSplit];
};

// ---- what a CTA reads ----

// All entries of a cloud, of which it lists those of destinations low .. low + count.
struct CloudEntries {
  Indices idx;
  int64_t first;  // the cloud's first entry
  int64_t entries, low;
  int count;

  __device__ __forceinline__ int64_t load(int64_t i) const { return idx[first + i]; }
  __device__ __forceinline__ int destination(int64_t row) const {
    return row >= low && row < low + count ? static_cast<int>(row - low) : -1;
  }
  __device__ __forceinline__ bool is_below(int64_t row) const { return row >= 0 && row < low; }
  __device__ __forceinline__ uint32_t entry(int64_t i) const {
    return static_cast<uint32_t>(first + i);
  }
};

// A slice of a cloud's entries, of which it lists all by their range of destinations.
struct SliceEntries {
  Indices idx;
  int64_t first;            // the slice's first entry
  int64_t entries, before;  // before: of the cloud
  int64_t n, part;

  __device__ __forceinline__ int64_t load(int64_t i) const { return idx[first + i]; }
  __device__ __forceinline__ int destination(int64_t row) const {
    const bool is_row = row >= 0 && row < n;
    return is_row ? static_cast<int>(static_cast<uint32_t>(row) / static_cast<uint32_t>(part)) : -1;
  }
  __device__ __forceinline__ bool is_below(int64_t) const { return false; }
  __device__ __forceinline__ uint32_t entry(int64_t i) const {
    const int64_t row = load(i);
    return static_cast<uint32_t>(row - destination(row) * part) << kEntryBits |
           static_cast<uint32_t>(before + i);
  }
};

// The entries of a range, slice by slice.
struct RangeEntries {
  const uint32_t* split;  // of the cloud
  const InvertShared& shared;
  int slices;
  int64_t first, entries;

  __device__ __forceinline__ uint32_t packed(int64_t i) const {
    int slice = 0;  // the last one that begins at or before i
#pragma unroll
    for (int step = kMaxSplit / 2; step > 0; step /= 2) {
      if (slice + step < slices && shared.begins[slice + step] <= i) slice += step;
    }
    return split[shared.places[slice] + i - shared.begins[slice]];
  }
  __device__ __forceinline__ int64_t load(int64_t i) const { return packed(i); }
  __device__ __forceinline__ int destination(int64_t value) const {
    return value < 0 ? -1 : static_cast<int>(value >> kEntryBits);
  }
  __device__ __forceinline__ bool is_below(int64_t) const { return false; }
  __device__ __forceinline__ uint32_t entry(int64_t i) const {
    return static_cast<uint32_t>(first) + (packed(i) & ((1u << kEntryBits) - 1));
  }
};

// A CTA's share: `count` destinations of what it reads.
template <class Entries>
struct InvertPart {
  Entries source;
  uint32_t* result;
  int64_t first;       // the cloud's first entry
  int count, pitch;    // pitch: of a warp's counters, an even number
  uint32_t* counters;  // [count]: how many, then where the next one goes
  uint16_t* of_warp;   // [kInvertWarps][pitch]
  uint32_t below;      // the thread's entries of smaller destinations

  __device__ __forceinline__ void count_all() {
    for (int64_t base = 0; base < source.entries; base += kInvertThreads * kInvertUnroll) {
      int64_t row[kInvertUnroll];
#pragma unroll
      for (int u = 0; u < kInvertUnroll; ++u) {
        const int64_t i = base + u * kInvertThreads + threadIdx.x;
        row[u] = i < source.entries ? source.load(i) : -1;
      }
#pragma unroll
      for (int u = 0; u < kInvertUnroll; ++u) {
        const int d = source.destination(row[u]);
        if (d >= 0) atomicAdd(counters + d, 1u);
        if (source.is_below(row[u])) ++below;
      }
    }
    __syncthreads();
  }

  // Entries `start` to `end` of the source, a warp's 32 * steps in a piece: their destinations and
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
        row[u] = s + u < steps && i < end ? source.load(i) : -1;
      }
#pragma unroll
      for (int u = 0; u < kInvertLoads; ++u) {
        ranked[s + u] = ~0u;
        if (s + u >= steps) continue;
        const int d = source.destination(row[u]);
        if (kCounts && source.is_below(row[u])) ++below;
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

  // fn(place, i) for the thread's ranked entries i of a chunk.
  template <typename Fn>
  __device__ __forceinline__ void each_place(int64_t start, int steps,
                                             const uint32_t (&ranked)[kInvertSteps],
                                             Fn&& fn) const {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const int64_t mine = start + int64_t{warp} * steps * 32 + lane;
#pragma unroll
    for (int s = 0; s < kInvertSteps; ++s) {
      if (ranked[s] == ~0u) continue;
      const int d = static_cast<int>(ranked[s] >> kInvertPlaceBits);
      const uint32_t place = ranked[s] & ((1u << kInvertPlaceBits) - 1);
      fn(counters[d] + of_warp[warp * pitch + d] + place, mine + s * 32);
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
    const bool single = source.entries <= kInvertChunk;
    uint32_t base = 0;
    if (!single) {
      count_all();
      base = place_lists(ranges, shared);
    }
    for (int64_t start = 0; start == 0 || start < source.entries; start += kInvertChunk) {
      const int64_t end = min(start + kInvertChunk, source.entries);
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
      each_place(start, steps, ranked,
                 [&](uint32_t place, int64_t i) { result[base + place] = source.entry(i); });
      __syncthreads();
#pragma unroll
      for (int m = 0; m < kMine; ++m) {
        const int d = static_cast<int>(threadIdx.x) + m * kInvertThreads;
        if (d < count) counters[d] += total[m];
      }
      __syncthreads();
    }
  }

  // Lists one chunk of up to kMaxSplit destinations from result[0] on, and where their lists begin.
  __device__ __forceinline__ void run_small(uint32_t* starts) {
    const int steps = static_cast<int>(ceil_div(source.entries, int64_t{kInvertThreads}));
    const int lane = static_cast<int>(threadIdx.x);
    uint32_t ranked[kInvertSteps];
    clear_warps();
    rank_chunk<false>(0, source.entries, steps, ranked);
    __syncthreads();
    if (lane < 32) {
      const uint32_t own = lane < count ? sum_warps(lane) : 0;
      uint32_t sum = own;
      for (int step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += other;
      }
      if (lane < count) counters[lane] = starts[lane] = sum - own;
      if (lane == count - 1) starts[count] = sum;
    }
    __syncthreads();
    each_place(0, steps, ranked,
               [&](uint32_t place, int64_t i) { result[place] = source.entry(i); });
    __syncthreads();
  }
};

__host__ __device__ constexpr int64_t invert_pitch(int64_t part) { return (part + 1) / 2 * 2; }

__host__ __device__ constexpr int64_t slice_length(int64_t entries, int slices) {
  return (entries + slices - 1) / slices;
}

// A block splits a slice of a cloud's entries by their range of destinations.
static __global__ void __launch_bounds__(kInvertThreads) invert_split_kernel(InvertIndex a) {
  extern __shared__ uint32_t counters[];  // [ranges], then those of the warps
  const int ranges = static_cast<int>((a.n + a.part - 1) / a.part), slice = blockIdx.x;
  const int64_t length = slice_length(a.entries, a.slices), before = slice * length;
  for (int64_t b = blockIdx.y; b < a.clouds; b += gridDim.y) {
    const int64_t first = b * a.entries + before;
    const SliceEntries source{a.idx, first, min(length, a.entries - before), before, a.n, a.part};
    auto* of_warp = reinterpret_cast<uint16_t*>(counters + ranges);
    InvertPart<SliceEntries> part{
        source,   a.split + first, 0, ranges, static_cast<int>(invert_pitch(ranges)),
        counters, of_warp,         0};
    part.run_small(a.starts + (b * a.slices + slice) * (ranges + 1));
  }
}

// What a range has of every slice, for warp 0; returns the thread's entries of smaller ranges.
__device__ __forceinline__ uint32_t find_slices(const InvertIndex& a, int64_t b,
                                                InvertShared& shared) {
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t row = (a.n + a.part - 1) / a.part + 1;
  uint32_t begin = 0, size = 0;
  if (lane < a.slices) {
    const uint32_t* starts = a.starts + (b * a.slices + lane) * row + blockIdx.x;
    begin = starts[0];
    size = starts[1] - begin;
    shared.places[lane] = static_cast<int>(lane * slice_length(a.entries, a.slices) + begin);
  }
  uint32_t sum = size;
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane < a.slices) shared.begins[lane] = static_cast<int>(sum - size);
  if (lane == a.slices - 1) shared.begins[a.slices] = static_cast<int>(sum);
  return begin;
}

template <bool kSplit>
static __global__ void __launch_bounds__(kInvertThreads) invert_index_kernel(InvertIndex a) {
  extern __shared__ uint32_t counters[];  // [part], then those of the warps
  __shared__ InvertShared shared;
  const int64_t low = blockIdx.x * a.part;
  const int count = static_cast<int>(min(a.part, a.n - low));
  const int pitch = static_cast<int>(invert_pitch(a.part));
  auto* of_warp = reinterpret_cast<uint16_t*>(counters + a.part);
  for (int64_t b = blockIdx.y; b < a.clouds; b += gridDim.y) {
    const int64_t first = b * a.entries;
    for (int d = static_cast<int>(threadIdx.x); d < count; d += kInvertThreads) counters[d] = 0;
    uint32_t below = 0;
    if (kSplit && threadIdx.x < 32) below = find_slices(a, b, shared);
    __syncthreads();
    uint2* const ranges = a.ranges + b * a.n + low;
    if constexpr (kSplit) {
      const RangeEntries source{a.split + first, shared, a.slices, first, shared.begins[a.slices]};
      InvertPart<RangeEntries> part{source, a.result, first,   count,
                                    pitch,  counters, of_warp, below};
      part.run(ranges, shared);
    } else {
      const CloudEntries source{a.idx, first, a.entries, low, count};
      InvertPart<CloudEntries> part{source, a.result, first,   count,
                                    pitch,  counters, of_warp, below};
      part.run(ranges, shared);
    }
  }
}

// Destinations of a CTA: enough CTAs for the device, few readers of the same indices. Where entries
// are split, a range that is twice as full as the others is one chunk: ball queries name a cloud's
// first points most.
inline int64_t invert_part_size(int64_t clouds, int64_t n, int64_t entries, int sm_count) {
  int64_t wanted = std::clamp<int64_t>(sm_count / std::max<int64_t>(clouds, 1), 1, 16);
  if (entries > kInvertChunk) {
    const int64_t full = ceil_div(2 * entries, kInvertChunk);
    wanted = std::max(wanted, std::min<int64_t>(full, kMaxSplit));
  }
  return ceil_div(n, std::max(std::min(wanted, n), ceil_div(n, kMaxCounters)));
}

inline size_t invert_shared_bytes(int64_t part) {
  return sizeof(uint32_t) * static_cast<size_t>(part) +
         sizeof(uint16_t) * static_cast<size_t>(kInvertWarps * invert_pitch(part));
}

// Whether this way serves; if not, sort.
inline bool can_invert(int64_t clouds, int64_t n, int64_t entries, int sm_count, int shared_bytes) {
  const int64_t part = invert_part_size(clouds, n, entries, sm_count);
  return entries <= kMaxCounted && ceil_div(n, part) <= kMaxParts &&
         invert_shared_bytes(part) + sizeof(InvertShared) <= size_t(shared_bytes);
}

// Slices of a cloud whose entries are split before they are listed; 0: they are not.
inline int invert_slices(int64_t clouds, int64_t n, int64_t entries, int sm_count) {
  const int64_t ranges = ceil_div(n, invert_part_size(clouds, n, entries, sm_count));
  if (entries <= kInvertChunk || ranges < 2 || ranges > kMaxSplit) return 0;
  const int64_t wanted = std::clamp<int64_t>(sm_count / std::max<int64_t>(clouds, 1), 1, kMaxSplit);
  return static_cast<int>(std::max(wanted, ceil_div(entries, kInvertChunk)));
}

// Values of a split: the entries, and where ranges begin in slices.
inline int64_t invert_split_values(int64_t clouds, int64_t n, int64_t entries, int sm_count) {
  const int64_t ranges = ceil_div(n, invert_part_size(clouds, n, entries, sm_count));
  return clouds * (entries + invert_slices(clouds, n, entries, sm_count) * (ranges + 1));
}

// Leaves its errors to check_launch.
inline void launch_invert_index(InvertIndex a, int sm_count, cudaStream_t stream) {
  a.part = invert_part_size(a.clouds, a.n, a.entries, sm_count);
  const int64_t ranges = ceil_div(a.n, a.part);
  const auto rows = static_cast<unsigned>(std::min(a.clouds, kMaxGridY));
  const dim3 grid(static_cast<unsigned>(ranges), rows);
  const size_t bytes = invert_shared_bytes(a.part);
  if (a.slices > 0) {
    allow_any_shared_memory<&invert_index_kernel<true>>();
    const dim3 slices(static_cast<unsigned>(a.slices), rows);
    invert_split_kernel<<<slices, kInvertThreads, invert_shared_bytes(ranges), stream>>>(a);
    invert_index_kernel<true><<<grid, kInvertThreads, bytes, stream>>>(a);
  } else {
    allow_any_shared_memory<&invert_index_kernel<false>>();
    invert_index_kernel<false><<<grid, kInvertThreads, bytes, stream>>>(a);
  }
}

}  // namespace fusedops
