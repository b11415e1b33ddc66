// Sums rows by destination: out[d] = sum over entries e with destination d of weight[e] * rows[e].
// The entries are sorted by destination first (stable), so every sum has one order and two runs
// agree bit by bit, without atomics; the cost does not depend on how the destinations repeat.
#pragma once

#include <algorithm>

#include "csrc/common/device/cloud.cuh"
#include "csrc/common/int_math.h"

namespace fusedops {

inline constexpr int kScatterThreads = 256;
inline constexpr int kScatterUnroll = 4;  // rows a lane has in flight
inline constexpr int kScatterBlocksPerSm = 4;
inline constexpr unsigned kLongList = 128;  // entries that are worth a whole CTA

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
template <class T_, int kCount_, bool kVector_, bool kWeighted_>
struct Access {
  using T = T_;
  static constexpr int kCount = kCount_;
  static constexpr bool kVector = kVector_;
  static constexpr bool kWeighted = kWeighted_;
  using Values = Vec<T, kCount>;

  static __device__ __forceinline__ int channel(int lane, int lanes, int v) {
    return kVector ? lane * kCount + v : lane + v * lanes;
  }

  // Channels chunk + channel(lane, lanes, v) of the entry's row.
  static __device__ __forceinline__ Values load(const ScatterRows<T>& a, uint32_t entry,
                                                int64_t chunk, int lane, int lanes) {
    const uint32_t row = kWeighted ? entry / a.per_row : entry;
    const T* source = a.rows + row * a.pitch + a.first + chunk;
    if constexpr (kVector) {
      return *reinterpret_cast<const Values*>(source + lane * kCount);
    } else {
      Values result;
#pragma unroll
      for (int v = 0; v < kCount; ++v) {
        const int at = channel(lane, lanes, v);
        result.value[v] =
            chunk + at < a.count ? __ldg(source + at) : from_compute<T>(Compute<T>(0));
      }
      return result;
    }
  }
};

template <class A>
struct Accumulator {
  using T = typename A::T;
  Compute<T> sum[A::kCount];

  __device__ __forceinline__ void store(const ScatterRows<T>& a, int64_t row, int64_t chunk,
                                        int lane, int lanes) const {
    const int64_t at = row * a.count + chunk;
    if (A::kVector && !a.out_fp32) {
      typename A::Values values;
#pragma unroll
      for (int v = 0; v < A::kCount; ++v) values.value[v] = from_compute<T>(sum[v]);
      *reinterpret_cast<typename A::Values*>(static_cast<T*>(a.out) + at + lane * A::kCount) =
          values;
      return;
    }
#pragma unroll
    for (int v = 0; v < A::kCount; ++v) {
      const int channel = A::channel(lane, lanes, v);
      if (chunk + channel >= a.count) continue;
      if (a.out_fp32) {
        static_cast<float*>(a.out)[at + channel] = static_cast<float>(sum[v]);
      } else {
        static_cast<T*>(a.out)[at + channel] = from_compute<T>(sum[v]);
      }
    }
  }
};

// The lane's part of the sum over entries begin, begin + stride, ..., several rows in flight and
// the next entries on their way.
template <class A>
__device__ __forceinline__ Accumulator<A> sum_list(const ScatterRows<typename A::T>& a,
                                                   unsigned begin, unsigned end, unsigned stride,
                                                   int64_t chunk, int lane, int lanes) {
  using T = typename A::T;
  Accumulator<A> result{};
  if (chunk + A::channel(lane, lanes, 0) >= a.count) return result;
  uint32_t next[kScatterUnroll];
#pragma unroll
  for (int u = 0; u < kScatterUnroll; ++u) {
    next[u] = begin + u * stride < end ? __ldg(a.entries + begin + u * stride) : 0;
  }
  for (unsigned p = begin; p < end; p += kScatterUnroll * stride) {
    typename A::Values values[kScatterUnroll];
    Compute<T> weights[kScatterUnroll];
#pragma unroll
    for (int u = 0; u < kScatterUnroll; ++u) {
      const bool exists = p + u * stride < end;
      values[u] = {};
      weights[u] = 0;
      if (exists) values[u] = A::load(a, next[u], chunk, lane, lanes);
      if (A::kWeighted && exists) weights[u] = load_side<T>(a.weights, a.wide_weights, next[u]);
      const unsigned ahead = p + (u + kScatterUnroll) * stride;
      next[u] = ahead < end ? __ldg(a.entries + ahead) : 0;
    }
#pragma unroll
    for (int u = 0; u < kScatterUnroll; ++u) {
#pragma unroll
      for (int v = 0; v < A::kCount; ++v) {
        const Compute<T> value = to_compute(values[u].value[v]);
        result.sum[v] += A::kWeighted ? weights[u] * value : value;
      }
    }
  }
  return result;
}

// A thread group of `lanes` per destination, `rows` destinations a CTA, at most one to a group; a
// long list takes the CTA's groups together, after their own.
template <class A>
__global__ void __launch_bounds__(kScatterThreads)
    scatter_rows_kernel(ScatterRows<typename A::T> a, int lanes, int rows) {
  __shared__ Accumulator<A> partial[kScatterThreads];
  __shared__ uint2 ranges[kScatterThreads];
  const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
  const int groups = kScatterThreads / lanes;
  const int64_t first = int64_t{blockIdx.x} * rows, row = first + group;
  const bool taken = group < rows && row < a.destinations;
  const uint2 range = taken ? a.ranges[row] : uint2{0, 0};
  if (lane == 0) ranges[group] = range;
  const int step = lanes * A::kCount;
  const bool is_long = range.y - range.x > kLongList;
  if (taken && !is_long) {
    for (int64_t chunk = 0; chunk < a.count; chunk += step) {
      const auto sum = sum_list<A>(a, range.x, range.y, 1, chunk, lane, lanes);
      if (chunk + A::channel(lane, lanes, 0) < a.count) sum.store(a, row, chunk, lane, lanes);
    }
  }
  if (!__syncthreads_or(is_long)) return;
  for (int r = 0; r < rows; ++r) {
    const uint2 whole = ranges[r];
    if (whole.y - whole.x <= kLongList) continue;
    for (int64_t chunk = 0; chunk < a.count; chunk += step) {
      partial[threadIdx.x] = sum_list<A>(a, whole.x + group, whole.y, groups, chunk, lane, lanes);
      __syncthreads();
      if (group == 0 && chunk + A::channel(lane, lanes, 0) < a.count) {
        Accumulator<A> sum = partial[lane];
        for (int g = 1; g < groups; ++g) {
          for (int v = 0; v < A::kCount; ++v) sum.sum[v] += partial[g * lanes + lane].sum[v];
        }
        sum.store(a, first + r, chunk, lane, lanes);
      }
      __syncthreads();
    }
  }
}

template <class A>
void launch_scatter_rows(const ScatterRows<typename A::T>& a, int sm_count, cudaStream_t stream) {
  int lanes = 1;
  while (lanes < 32 && int64_t{lanes} * A::kCount < a.count) lanes *= 2;
  // Few destinations are spread over the GPU: their lists may be long.
  const int64_t spread = ceil_div(a.destinations, int64_t{sm_count} * kScatterBlocksPerSm);
  const auto rows = static_cast<int>(std::min<int64_t>(spread, kScatterThreads / lanes));
  scatter_rows_kernel<A>
      <<<static_cast<unsigned>(ceil_div(a.destinations, rows)), kScatterThreads, 0, stream>>>(
          a, lanes, rows);
}

}  // namespace fusedops
