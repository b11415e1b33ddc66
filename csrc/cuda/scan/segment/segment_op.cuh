// The operators of segment reductions, and how offsets are searched.
#pragma once

#include "csrc/common/device/pdl.cuh"
#include "csrc/cuda/scan/scan_op.cuh"

namespace fusedops {

// Operators: combine(a, b) and add(a, element) take a first. Narrow: with rows counted in 32 bits
// from a base of the kernel's choice; widen(state, base) undoes it.

// Sum and mean: fp32 or fp64; a mean divides once, at the end.
template <class T>
struct SegmentSum {
  using Narrow = SegmentSum;
  using In = T;
  using State = Compute<T>;
  static constexpr bool kIndexed = false;
  static constexpr int kVec = 16 / sizeof(T);
  static __device__ In pad() { return static_cast<In>(0.0f); }
  static __device__ State identity() { return State(0); }
  static __device__ State lift(auto x, int64_t) { return to_compute(x); }
  static __device__ State combine(State a, State b) { return a + b; }
  static __device__ State add(State a, auto x, int64_t) { return a + to_compute(x); }
  static __device__ State widen(State s, int64_t) { return s; }
  static __device__ State value(State s) { return s; }
};

// The largest or smallest value and the first row that holds it; NaN wins over every number.
template <class T, bool kMax, class Index = int64_t>
struct SegmentExtreme {
  using Narrow = SegmentExtreme<T, kMax, int32_t>;
  using In = T;
  struct State {
    Index index;  // -1: nothing yet
    Compute<T> value;
  };
  static constexpr bool kIndexed = true;
  static constexpr int kVec = 16 / sizeof(T);
  static __device__ In pad() { return static_cast<In>(0.0f); }
  static __device__ State identity() { return {-1, Compute<T>(0)}; }
  static __device__ State lift(auto x, int64_t row) {
    return {static_cast<Index>(row), to_compute(x)};
  }
  static __device__ State combine(const State& a, const State& b) {
    const State s = later(a, b);
    const bool keep = b.index < 0;
    return {keep ? a.index : s.index, keep ? a.value : s.value};
  }
  static __device__ State add(const State& a, auto x, int64_t row) {
    return later(a, lift(x, row));
  }
  static __device__ auto widen(const State& s, int64_t base) {
    using Wide = typename SegmentExtreme<T, kMax>::State;
    return Wide{s.index < 0 ? -1 : base + s.index, s.value};
  }
  static __device__ Compute<T> value(const State& s) { return s.value; }

 private:
  // b holds a row. NOTE: no && or ||, which become branches
  static __device__ State later(const State& a, const State& b) {
    const bool better = kMax ? !(b.value <= a.value) : !(b.value >= a.value);  // or a NaN
    const bool take = (a.index < 0) | (better & (a.value == a.value));
    return {take ? b.index : a.index, take ? b.value : a.value};
  }
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

// The same with offsets as sorted numbers shared out among the lanes of a warp: 32 at a time.
__device__ inline int64_t find_segment_by_warp(const int64_t* offsets, int64_t low, int64_t high,
                                               int64_t row) {
  const int lane = threadIdx.x % 32;
  for (int64_t count = high - low + 1; count > 0;) {
    const int64_t step = ceil_div(count, int64_t{32}), at = lane * step;
    const bool before = at < count && offsets[low + at] <= row;
    const int lanes = __popc(__ballot_sync(0xffffffffu, before));
    if (lanes == 0) break;
    const int64_t passed = (lanes - 1) * step + 1;
    low += passed;
    count = min(count - passed, step - 1);
  }
  return low - 1;
}

// first[i] = the segment at row min(i * step, rows), for i in [0, count). A warp for each i.
inline constexpr int kPartitionThreads = 256;
static __global__ void __launch_bounds__(kPartitionThreads)
    partition_kernel(const int64_t* __restrict__ offsets, int64_t segments, int64_t rows,
                     int64_t step, int64_t count, int64_t* __restrict__ first) {
  wait_for_predecessor();
  const int64_t i = (int64_t{blockIdx.x} * kPartitionThreads + threadIdx.x) / 32;
  if (i >= count) return;
  const int64_t s = find_segment_by_warp(offsets, 0, segments, min(i * step, rows));
  if (threadIdx.x % 32 == 0) first[i] = s;
}

// `overlap`: as for launch_kernel, as everywhere below.
inline void launch_partition(const int64_t* offsets, int64_t segments, int64_t rows, int64_t step,
                             int64_t count, int64_t* first, bool overlap, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(count * 32, int64_t{kPartitionThreads}));
  launch_kernel(partition_kernel, dim3(blocks), dim3(kPartitionThreads), 0, stream, overlap,
                offsets, segments, rows, step, count, first);
}

}  // namespace fusedops
