// The gradient of an embedding: out[v] = sum of grad[m] over the entries m of row v, zeros where
// there are none. The rows' entries come as an inverted index, so every row of out is written once,
// nothing is zeroed before, and two runs agree bit by bit.
//
// A row's entries are summed in ascending order by chunks (csrc/common/embedding.h): one kernel
// sums the full chunks of all rows side by side, the other adds those sums and the entries behind
// them. Chunks are counted from the row's own first entry, so other rows do not show in its sum.
#pragma once

#include <algorithm>

#include "csrc/common/device/vec.cuh"
#include "csrc/common/int_math.h"
#include "csrc/cuda/inverted_index/indices.cuh"

namespace fusedops {

inline constexpr int kEmbeddingThreads = 256;
// NOTE: of an SM. Without it nvcc takes 32 registers where it can, and one load after the other.
inline constexpr int kEmbeddingBlocks = 3;
inline constexpr int kEmbeddingUnroll = 8;   // vectors that a thread has in flight
inline constexpr int kEmbeddingBytes = 128;  // and at most as many bytes
inline constexpr int kEmbeddingRows = 8;     // rows of a thread group

template <class T>
struct EmbeddingGradient {
  const T* grad;           // [entries][d]
  Indices indices;         // [entries]
  const uint32_t* order;   // [entries], by row
  const uint2* ranges;     // [rows] in order
  Compute<T>* chunk_sums;  // [entries / chunk][d]
  T* out;                  // [rows][d]
  int64_t entries, rows, d;
  int64_t padding;  // a row that gets zeros, or -1
  uint32_t chunk;
};

// How a thread group of `lanes` reads and writes a row: kV values a lane, side by side.
template <class T_, int kV_>
struct EmbeddingAccess {
  using T = T_;
  static constexpr int kV = kV_;
  Compute<T> sum[kV] = {};

  // Adds source(0) to source(count - 1), in this order, several in flight.
  template <class S, class Source>
  __device__ __forceinline__ void add(uint32_t count, Source&& source) {
    using Values = Vec<S, kV>;
    constexpr int kUnroll = std::min<int>(kEmbeddingUnroll, kEmbeddingBytes / sizeof(Values));
    for (uint32_t i = 0; i < count; i += kUnroll) {
      // NOTE: the last one is read again rather than none: loads under a condition come one by one.
      Values values[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        values[u] = *reinterpret_cast<const Values*>(source(min(i + u, count - 1)));
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int v = 0; v < kV; ++v) {
          const Compute<T> value = to_compute(values[u].value[v]);
          sum[v] += i + u < count ? value : Compute<T>(0);
        }
      }
    }
  }

  __device__ __forceinline__ void add_entries(const EmbeddingGradient<T>& a, uint32_t first,
                                              uint32_t count, int64_t c) {
    add<T>(count, [&](uint32_t i) { return a.grad + __ldg(a.order + first + i) * a.d + c; });
  }

  template <class S>
  __device__ __forceinline__ void store(S* to) const {
    Vec<S, kV> values;
#pragma unroll
    for (int v = 0; v < kV; ++v) values.value[v] = from_compute<S>(sum[v]);
    *reinterpret_cast<Vec<S, kV>*>(to) = values;
  }
};

// A thread group per slot: slot s holds the sum of the full chunk that begins in the s-th `chunk`
// places of `order`, if there is one. Two chunks do not begin so close to each other, and one that
// begins there has the last of these places.
template <class Access>
__global__ void __launch_bounds__(kEmbeddingThreads, kEmbeddingBlocks)
    embedding_chunks_kernel(EmbeddingGradient<typename Access::T> a, int64_t slots, int lanes) {
  const int lane = threadIdx.x % lanes;
  const int64_t slot =
      int64_t{blockIdx.x} * (kEmbeddingThreads / lanes) + static_cast<int>(threadIdx.x) / lanes;
  if (slot >= slots) return;
  const auto place = static_cast<uint32_t>(slot) * a.chunk;
  // NOTE: behind the last list `order` is undefined. Any entry may stand there, and the chunk of
  // that entry's row is looked at: it only counts where it begins in this slot.
  const int64_t entry = min(int64_t{__ldg(a.order + place + a.chunk - 1)}, a.entries - 1);
  const int64_t row = a.indices[entry];
  if (row < 0 || row >= a.rows || row == a.padding) return;
  const uint2 range = a.ranges[row];
  const uint32_t before = place > range.x ? (place - range.x + a.chunk - 1) / a.chunk : 0;
  const uint32_t begin = range.x + before * a.chunk;
  if (begin / a.chunk != slot || range.y - begin < a.chunk || range.y < begin) return;
  for (int64_t c = lane * Access::kV; c < a.d; c += lanes * Access::kV) {
    Access access;
    access.add_entries(a, begin, a.chunk, c);
    access.store(a.chunk_sums + slot * a.d + c);
  }
}

// A thread group takes kEmbeddingRows rows: it writes the zeros of all of them first.
template <class Access>
__global__ void __launch_bounds__(kEmbeddingThreads, kEmbeddingBlocks)
    embedding_rows_kernel(EmbeddingGradient<typename Access::T> a, int lanes) {
  using T = typename Access::T;
  const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
  const int groups = kEmbeddingThreads / lanes;
  const int64_t first = int64_t{blockIdx.x} * groups * kEmbeddingRows + group;
  unsigned filled = 0, empty = 0;  // by bits
#pragma unroll
  for (int u = 0; u < kEmbeddingRows; ++u) {
    const int64_t row = first + u * groups;
    if (row >= a.rows) continue;
    const uint2 range = __ldg(a.ranges + row);
    (range.x == range.y || row == a.padding ? empty : filled) |= 1u << u;
  }
  for (int64_t c = lane * Access::kV; c < a.d; c += lanes * Access::kV) {
#pragma unroll
    for (int u = 0; u < kEmbeddingRows; ++u) {
      if (empty >> u & 1) Access().store(a.out + (first + u * groups) * a.d + c);
    }
  }
  for (; filled != 0; filled &= filled - 1) {
    const int64_t row = first + (__ffs(static_cast<int>(filled)) - 1) * groups;
    const uint2 range = __ldg(a.ranges + row);
    const uint32_t chunks = (range.y - range.x) / a.chunk, in_chunks = chunks * a.chunk;
    const Compute<T>* sums = a.chunk_sums + range.x / a.chunk * a.d;
    for (int64_t c = lane * Access::kV; c < a.d; c += lanes * Access::kV) {
      Access access;
      access.template add<Compute<T>>(chunks, [&](uint32_t i) { return sums + i * a.d + c; });
      access.add_entries(a, range.x + in_chunks, range.y - range.x - in_chunks, c);
      access.store(a.out + row * a.d + c);
    }
  }
}

// Leaves its errors to check_launch.
template <class Access>
void launch_embedding_backward(const EmbeddingGradient<typename Access::T>& a,
                               cudaStream_t stream) {
  int lanes = 1;
  while (lanes < kEmbeddingThreads && int64_t{lanes} * Access::kV < a.d) lanes *= 2;
  const int groups = kEmbeddingThreads / lanes;
  const int64_t slots = a.entries / a.chunk;
  if (slots > 0) {
    embedding_chunks_kernel<Access>
        <<<static_cast<unsigned>(ceil_div(slots, groups)), kEmbeddingThreads, 0, stream>>>(a, slots,
                                                                                           lanes);
  }
  embedding_rows_kernel<Access>
      <<<static_cast<unsigned>(ceil_div(a.rows, int64_t{groups} * kEmbeddingRows)),
         kEmbeddingThreads, 0, stream>>>(a, lanes);
}

}  // namespace fusedops
