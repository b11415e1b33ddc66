// Walking over a row of any length, straight from memory: for kernels that need a row once, and for
// rows that no team can hold. Chunks as in row_team.cuh.
#pragma once

#include "csrc/cuda/rows/team/row_team.cuh"

namespace fusedops {

inline constexpr int kStreamUnroll = 4;  // chunks that a thread has in flight

template <class S, int kVec>
struct StreamChunk {
  Packed<S, kVec> vec;
  int64_t column;  // of element 0; negative where the chunk begins before its row
  int lo, hi;      // elements [lo, hi) belong to the row

  __device__ __forceinline__ bool full() const { return lo == 0 && hi == kVec; }

  template <class Fn>
  __device__ __forceinline__ void each(Fn fn) const {
    if (full()) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) fn(e);
    } else {
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        if (e >= lo && e < hi) fn(e);
      }
    }
  }
};

// The same chunk of another tensor.
template <class S, class L, int kVec>
__device__ __forceinline__ Packed<S, kVec> load_like(const S* row,
                                                     const StreamChunk<L, kVec>& like) {
  const S* chunk = row + like.column;
  if (like.full()) return load_packed<S, kVec>(chunk);
  Compute<S> value[kVec] = {};
  like.each([&](int e) { value[e] = to_compute(chunk[e]); });
  return pack<S>(value);
}

template <class O, class L, int kVec, class C>
__device__ __forceinline__ void store_like(O* row, const StreamChunk<L, kVec>& like,
                                           const C (&value)[kVec]) {
  O* chunk = row + like.column;
  if (like.full()) {
    store_packed(chunk, pack<O>(value));
  } else {
    like.each([&](int e) { chunk[e] = from_compute<O>(value[e]); });
  }
}

// fn(chunk) for the chunks index, index + size, ... of a row of n elements that starts `shift`
// elements into a chunk.
template <class S, int kVec, class Fn>
__device__ __forceinline__ void stream_row(const S* row, int64_t n, int shift, int index, int size,
                                           Fn fn) {
  const int64_t step = int64_t{size} * kVec;
  for (int64_t begin = int64_t{index} * kVec; begin < shift + n; begin += step * kStreamUnroll) {
    StreamChunk<S, kVec> chunk[kStreamUnroll];
#pragma unroll
    for (int u = 0; u < kStreamUnroll; ++u) {
      const int64_t at = begin + u * step;
      const int64_t left = shift + n - at;
      chunk[u].column = at - shift;
      chunk[u].lo = at == 0 ? shift : 0;
      chunk[u].hi = left < kVec ? static_cast<int>(left < 0 ? 0 : left) : kVec;
      if (chunk[u].hi > 0) chunk[u].vec = load_like<S>(row, chunk[u]);
    }
#pragma unroll
    for (int u = 0; u < kStreamUnroll; ++u) {
      if (chunk[u].hi > 0) fn(chunk[u]);
    }
  }
}

}  // namespace fusedops
