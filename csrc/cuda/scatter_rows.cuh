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
  const T* rows;        // [entries / per_row][pitch], the channels from `first`
  const void* weights;  // [entries] or null
  DType weight_dtype;
  const uint32_t* entries;  // sorted by destination
  const uint2* ranges;      // [destinations]
  void* out;                // [destinations][count]
  bool out_fp32;            // of float, else of T
  int64_t pitch, first, count, destinations;
  unsigned per_row;
};

template <class T, int V>
struct Accumulator {
  Compute<T> sum[V];

  __device__ __forceinline__ void add(const ScatterRows<T>& a, uint32_t entry, int64_t channel) {
    const uint32_t row = a.per_row == 1 ? entry : entry / a.per_row;
    const auto* source = a.rows + row * a.pitch + a.first + channel;
    const Vec<T, V> value = *reinterpret_cast<const Vec<T, V>*>(source);
    const Compute<T> weight =
        a.weights ? load_as<Compute<T>>(a.weights, a.weight_dtype, entry) : Compute<T>(1);
#pragma unroll
    for (int v = 0; v < V; ++v) sum[v] += weight * to_compute(value.value[v]);
  }

  __device__ __forceinline__ void store(const ScatterRows<T>& a, int64_t row, int64_t channel) {
    const int64_t at = row * a.count + channel;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (a.out_fp32) {
        static_cast<float*>(a.out)[at + v] = static_cast<float>(sum[v]);
      } else {
        static_cast<T*>(a.out)[at + v] = from_compute<T>(sum[v]);
      }
    }
  }
};

// The warp's sum of entries begin, begin + 32 * stride, ... (32 from each); lanes of one thread
// group hold V channels each, the groups take turns and are added up at the end.
template <class T, int V>
__device__ __forceinline__ Accumulator<T, V> sum_segment(const ScatterRows<T>& a, uint2 range,
                                                         int64_t channel, int lanes, int stride) {
  Accumulator<T, V> result{};
  const int lane = threadIdx.x % 32, groups = 32 / lanes, group = lane / lanes;
  const bool active = channel < a.count;
  for (unsigned base = range.x; base < range.y; base += 32 * stride) {
    const unsigned count = min(range.y - base, 32u);
    const uint32_t mine = lane < count ? a.entries[base + lane] : 0;
#pragma unroll 4
    for (unsigned turn = 0; turn < count; turn += groups) {
      const unsigned from = turn + group;
      const uint32_t entry = __shfl_sync(0xffffffffu, mine, from & 31);
      if (from < count && active) result.add(a, entry, channel);
    }
  }
  for (int step = lanes; step < 32; step *= 2) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      result.sum[v] += __shfl_xor_sync(0xffffffffu, result.sum[v], step);
    }
  }
  return result;
}

// One warp per destination; a long segment takes the CTA's warps together, after their own.
template <class T, int V>
__global__ void __launch_bounds__(kScatterThreads)
    scatter_rows_kernel(ScatterRows<T> a, int lanes) {
  __shared__ Accumulator<T, V> partial[kScatterWarps][32];
  __shared__ uint2 ranges[kScatterWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t first = int64_t{blockIdx.x} * kScatterWarps, row = first + warp;
  const uint2 range = row < a.destinations ? a.ranges[row] : uint2{0, 0};
  if (lane == 0) ranges[warp] = range;
  const int64_t step = int64_t{lanes} * V;
  if (row < a.destinations && range.y - range.x <= kLongSegment) {
    for (int64_t chunk = 0; chunk < a.count; chunk += step) {
      const int64_t channel = chunk + lane % lanes * V;
      Accumulator<T, V> sum = sum_segment<T, V>(a, range, channel, lanes, 1);
      if (lane < lanes && channel < a.count) sum.store(a, row, channel);
    }
  }
  __syncthreads();
  for (int r = 0; r < kScatterWarps; ++r) {
    const uint2 whole = ranges[r];
    if (whole.y - whole.x <= kLongSegment) continue;
    for (int64_t chunk = 0; chunk < a.count; chunk += step) {
      const int64_t channel = chunk + lane % lanes * V;
      const uint2 part{whole.x + 32 * warp, whole.y};
      partial[warp][lane] = sum_segment<T, V>(a, part, channel, lanes, kScatterWarps);
      __syncthreads();
      if (warp == 0 && lane < lanes && channel < a.count) {
        Accumulator<T, V> sum = partial[0][lane];
        for (int w = 1; w < kScatterWarps; ++w) {
          for (int v = 0; v < V; ++v) sum.sum[v] += partial[w][lane].sum[v];
        }
        sum.store(a, first + r, channel);
      }
      __syncthreads();
    }
  }
}

template <class T, int V>
void launch_scatter_rows(const ScatterRows<T>& a, cudaStream_t stream) {
  int lanes = 1;
  while (lanes < 32 && int64_t{lanes} * V < a.count) lanes *= 2;
  scatter_rows_kernel<T, V><<<static_cast<unsigned>(ceil_div(a.destinations, kScatterWarps)),
                              kScatterThreads, 0, stream>>>(a, lanes);
}

}  // namespace fusedops
