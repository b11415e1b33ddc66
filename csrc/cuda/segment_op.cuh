// The operators of segment reductions, and how offsets are searched.
#pragma once

#include "cuda/scan_op.cuh"

namespace fusedops {

enum class SegmentKind : int8_t { kSum, kMean, kMax, kMin };

// Sum and mean: fp32 or fp64; a mean divides once, at the end.
template <class T>
struct SegmentSum {
  using In = T;
  using State = Compute<T>;
  static constexpr bool kIndexed = false;
  static constexpr int kVec = 16 / sizeof(T);
  static __device__ In pad() { return static_cast<In>(0.0f); }
  static __device__ State identity() { return State(0); }
  static __device__ State lift(In x, int64_t) { return to_compute(x); }
  static __device__ State combine(State a, State b) { return a + b; }
  static __device__ State value(State s) { return s; }
};

// The largest or smallest value and the first row that holds it; NaN wins over every number.
template <class T, bool kMax>
struct SegmentExtreme {
  using In = T;
  struct State {
    int64_t index;  // -1: nothing yet
    Compute<T> value;
  };
  static constexpr bool kIndexed = true;
  static constexpr int kVec = sizeof(T) == 2 ? 4 : 16 / sizeof(T);
  static __device__ In pad() { return static_cast<In>(0.0f); }
  static __device__ State identity() { return {-1, Compute<T>(0)}; }
  static __device__ State lift(In x, int64_t row) { return {row, to_compute(x)}; }
  static __device__ State combine(const State& a, const State& b) {
    const bool better = kMax ? b.value > a.value : b.value < a.value;
    const bool nan = b.value != b.value && a.value == a.value;
    return b.index >= 0 && (a.index < 0 || better || nan) ? b : a;
  }
  static __device__ Compute<T> value(const State& s) { return s.value; }
};

// A result of an operator: what an empty segment gives is identity(), 0 and index -1.
template <class Op>
struct SegmentOut {
  typename Op::In* y;
  int64_t* index;  // indexed operators only
  bool mean;

  __device__ typename Op::In value(const typename Op::State& s, int64_t length) const {
    auto v = Op::value(s);
    if (mean && length > 0) v /= static_cast<decltype(v)>(length);
    return from_compute<typename Op::In>(v);
  }
  __device__ void write(int64_t at, const typename Op::State& s, int64_t length) const {
    y[at] = value(s, length);
    if constexpr (Op::kIndexed) index[at] = s.index;
  }
};

// The last s in [low, high] with offsets[s] <= row; low - 1 where there is none. With offsets of S
// segments and the whole range: -1 before the first segment, S after the last, else the segment
// that holds the row (never an empty one).
__device__ inline int64_t find_segment(const int64_t* offsets, int64_t low, int64_t high,
                                       int64_t row) {
  ++high;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (offsets[middle] <= row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - 1;
}

// first[i] = the segment at row min(i * step, rows), for i in [0, count).
static __global__ void partition_kernel(const int64_t* __restrict__ offsets, int64_t segments,
                                        int64_t rows, int64_t step, int64_t count,
                                        int64_t* __restrict__ first) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) first[i] = find_segment(offsets, 0, segments, min(i * step, rows));
}

inline void launch_partition(const int64_t* offsets, int64_t segments, int64_t rows, int64_t step,
                             int64_t count, int64_t* first, cudaStream_t stream) {
  constexpr int kThreads = 128;
  partition_kernel<<<static_cast<unsigned>(ceil_div(count, kThreads)), kThreads, 0, stream>>>(
      offsets, segments, rows, step, count, first);
}

}  // namespace fusedops
