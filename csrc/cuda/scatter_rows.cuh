// Sums rows by destination: out[d] = sum over entries e with destination d of weight[e] * rows[e].
// The entries are sorted by destination first (stable), so every sum has one order and two runs
// agree bit by bit, without atomics; the cost does not depend on how the destinations repeat.
#pragma once

#include <algorithm>

#include "common/cloud.cuh"
#include "common/int_math.h"
#include "cuda/sort_by_key.h"

namespace fusedops {

inline constexpr int kScatterThreads = 256;
inline constexpr int kScatterUnroll = 4;  // rows a lane has in flight
inline constexpr int kScatterWarps = kScatterThreads / 32;
inline constexpr unsigned kLongSegment = 1024;  // entries that are worth a whole CTA

// Keys: the destination row, or `clouds * n` where idx is no row. Values: the entry.
__global__ void __launch_bounds__(kScatterThreads)
    scatter_keys_kernel(const int64_t* __restrict__ idx, int64_t clouds, int64_t n, int64_t entries,
                        uint32_t* __restrict__ keys, uint32_t* __restrict__ values) {
  const int64_t i = int64_t{blockIdx.x} * kScatterThreads + threadIdx.x;  // within the cloud
  if (i >= entries) return;
  for (int64_t b = blockIdx.y; b < clouds; b += gridDim.y) {
    const int64_t row = idx[b * entries + i];
    const bool valid = row >= 0 && row < n;
    keys[b * entries + i] = static_cast<uint32_t>(valid ? b * n + row : clouds * n);
    values[b * entries + i] = static_cast<uint32_t>(b * entries + i);
  }
}

// ranges[d] = first and last + 1 of destination d in the sorted keys; zeroed before.
__global__ void __launch_bounds__(kScatterThreads)
    scatter_ranges_kernel(const uint32_t* __restrict__ keys, int64_t count, int64_t destinations,
                          uint2* __restrict__ ranges) {
  const int64_t i = int64_t{blockIdx.x} * kScatterThreads + threadIdx.x;
  if (i >= count) return;
  const uint32_t key = keys[i];
  if (key >= destinations) return;
  if (i == 0 || keys[i - 1] != key) ranges[key].x = static_cast<unsigned>(i);
  if (i == count - 1 || keys[i + 1] != key) ranges[key].y = static_cast<unsigned>(i + 1);
}

template <class T>
struct ScatterRows {
  const T* rows;            // [entries / per_row][pitch], the channels from `first`
  const void* weights;      // [entries] or null
  bool wide_weights;        // they are float32 beside halves
  const uint32_t* entries;  // sorted by destination
  const uint2* ranges;      // [destinations]
  void* out;                // [destinations][count]
  bool out_fp32;            // of float, else of T
  int64_t pitch, first, count, destinations;
  unsigned per_row;
};

// How a lane of a thread group of `lanes` reads a row: kCount values side by side in one access, or
// one by one, `lanes` apart, so that the group's reads join up.
template <class T_, int kCount_, bool kVector_>
struct Access {
  using T = T_;
  static constexpr int kCount = kCount_;
  static constexpr bool kVector = kVector_;

  static __device__ __forceinline__ int64_t channel(int lane, int lanes, int v) {
    return kVector ? lane * kCount + v : lane + v * lanes;
  }
};

// Channels chunk + A::channel(lane, lanes, v) of the entry's row.
template <class A>
__device__ __forceinline__ Vec<typename A::T, A::kCount> load_row(
    const ScatterRows<typename A::T>& a, uint32_t entry, int64_t chunk, int lane, int lanes) {
  using T = typename A::T;
  const uint32_t row = a.per_row == 1 ? entry : entry / a.per_row;
  const T* source = a.rows + row * a.pitch + a.first + chunk;
  if constexpr (A::kVector) {
    return *reinterpret_cast<const Vec<T, A::kCount>*>(source + lane * A::kCount);
  } else {
    Vec<T, A::kCount> result;
#pragma unroll
    for (int v = 0; v < A::kCount; ++v) {
      const int64_t at = A::channel(lane, lanes, v);
      result.value[v] = chunk + at < a.count ? __ldg(source + at) : from_compute<T>(Compute<T>(0));
    }
    return result;
  }
}

template <class A>
struct Accumulator {
  using T = typename A::T;
  Compute<T> sum[A::kCount];

  // Adds weight * values.
  __device__ __forceinline__ void add(Compute<T> weight, const Vec<T, A::kCount>& values) {
#pragma unroll
    for (int v = 0; v < A::kCount; ++v) sum[v] += weight * to_compute(values.value[v]);
  }

  __device__ __forceinline__ void store(const ScatterRows<T>& a, int64_t row, int64_t chunk,
                                        int lane, int lanes) {
#pragma unroll
    for (int v = 0; v < A::kCount; ++v) {
      const int64_t channel = chunk + A::channel(lane, lanes, v);
      if (channel >= a.count) continue;
      const int64_t at = row * a.count + channel;
      if (a.out_fp32) {
        static_cast<float*>(a.out)[at] = static_cast<float>(sum[v]);
      } else {
        static_cast<T*>(a.out)[at] = from_compute<T>(sum[v]);
      }
    }
  }
};

// The warp's sum of entries begin, begin + 32 * stride, ... (32 from each) over one chunk of
// channels: thread groups of `lanes` take turns and are added up at the end.
template <class A>
__device__ __forceinline__ Accumulator<A> sum_segment(const ScatterRows<typename A::T>& a,
                                                      uint2 range, int64_t chunk, int lanes,
                                                      int stride) {
  using T = typename A::T;
  Accumulator<A> result{};
  const int lane = threadIdx.x % 32, groups = 32 / lanes, group = lane / lanes;
  const bool active = chunk + A::channel(lane % lanes, lanes, 0) < a.count;
  for (unsigned base = range.x; base < range.y; base += 32 * stride) {
    const unsigned count = min(range.y - base, 32u);
    const uint32_t mine = lane < count ? a.entries[base + lane] : 0;
    for (unsigned turn = 0; turn < count; turn += groups * kScatterUnroll) {
      Vec<T, A::kCount> values[kScatterUnroll];
      Compute<T> weights[kScatterUnroll];
#pragma unroll
      for (int u = 0; u < kScatterUnroll; ++u) {
        const unsigned from = turn + u * groups + group;
        const uint32_t entry = __shfl_sync(0xffffffffu, mine, from & 31);
        weights[u] = 0;
        values[u] = {};
        if (from < count && active) {
          weights[u] = a.weights ? load_side<T>(a.weights, a.wide_weights, entry) : Compute<T>(1);
          values[u] = load_row<A>(a, entry, chunk, lane % lanes, lanes);
        }
      }
#pragma unroll
      for (int u = 0; u < kScatterUnroll; ++u) result.add(weights[u], values[u]);
    }
  }
  for (int step = lanes; step < 32; step *= 2) {
#pragma unroll
    for (int v = 0; v < A::kCount; ++v) {
      result.sum[v] += __shfl_xor_sync(0xffffffffu, result.sum[v], step);
    }
  }
  return result;
}

// One warp per destination; a long segment takes the CTA's warps together, after their own.
template <class A>
__global__ void __launch_bounds__(kScatterThreads)
    scatter_rows_kernel(ScatterRows<typename A::T> a, int lanes) {
  __shared__ Accumulator<A> partial[kScatterWarps][32];
  __shared__ uint2 ranges[kScatterWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t first = int64_t{blockIdx.x} * kScatterWarps, row = first + warp;
  const uint2 range = row < a.destinations ? a.ranges[row] : uint2{0, 0};
  if (lane == 0) ranges[warp] = range;
  const int64_t step = int64_t{lanes} * A::kCount;
  if (row < a.destinations && range.y - range.x <= kLongSegment) {
    for (int64_t chunk = 0; chunk < a.count; chunk += step) {
      Accumulator<A> sum = sum_segment<A>(a, range, chunk, lanes, 1);
      if (lane < lanes) sum.store(a, row, chunk, lane, lanes);
    }
  }
  __syncthreads();
  for (int r = 0; r < kScatterWarps; ++r) {
    const uint2 whole = ranges[r];
    if (whole.y - whole.x <= kLongSegment) continue;
    for (int64_t chunk = 0; chunk < a.count; chunk += step) {
      const uint2 part{min(whole.x + 32 * warp, whole.y), whole.y};
      partial[warp][lane] = sum_segment<A>(a, part, chunk, lanes, kScatterWarps);
      __syncthreads();
      if (warp == 0 && lane < lanes) {
        Accumulator<A> sum = partial[0][lane];
        for (int w = 1; w < kScatterWarps; ++w) {
          for (int v = 0; v < A::kCount; ++v) sum.sum[v] += partial[w][lane].sum[v];
        }
        sum.store(a, first + r, chunk, lane, lanes);
      }
      __syncthreads();
    }
  }
}

template <class A>
void launch_scatter_rows(const ScatterRows<typename A::T>& a, cudaStream_t stream) {
  int lanes = 1;
  while (lanes < 32 && int64_t{lanes} * A::kCount < a.count) lanes *= 2;
  scatter_rows_kernel<A><<<static_cast<unsigned>(ceil_div(a.destinations, kScatterWarps)),
                           kScatterThreads, 0, stream>>>(a, lanes);
}

}  // namespace fusedops
