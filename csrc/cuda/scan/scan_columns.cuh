// Scans along a dimension that is not the last: (outer, n, inner) over n.
//
// A block of (lanes, steps) threads walks down a strip of columns, four rows of a vector per
// thread at a time, the next four already on their way. Totals of the steps meet in shared memory,
// where one thread per column scans them and keeps the carry. Few rows are one thread's, and all of
// them where columns alone fill the GPU. Where strips do not, n is cut into segments: a first
// launch makes their totals, a second scans, starting from the totals of the segments before it in
// order.
#pragma once

#include <algorithm>
#include <bit>

#include "csrc/common/device/division.cuh"
#include "csrc/common/device/pdl.cuh"
#include "csrc/cuda/scan/scan_op.cuh"

namespace fusedops {

inline constexpr int kColumnThreads = 256;
inline constexpr int kColumnRows = 4;       // per thread and step
inline constexpr int kColumnMaxSteps = 32;  // one thread scans their totals
inline constexpr int kColumnMaxSegments = 4096;
inline constexpr int kShortColumn = 16;  // rows; fewer leave most steps of a block without any
// Threads of an SM whose columns keep memory busy, all rows of one being a thread's.
inline constexpr int64_t kFullColumns = 512;
// What such a thread asks for ahead: bytes, and the most rows.
inline constexpr int kShortColumnBytes = 64, kMostColumnRows = 12;

template <class Op>
struct ScanColumns {
  const typename Op::In* x;  // (outer, n, inner), strides x_outer, x_row and 1
  typename Op::Out* y;       // (outer, n, inner)
  int64_t* index;            // (outer, n, inner), indexed operators only
  int64_t outer, n, inner, x_outer, x_row;
  bool exclusive, reverse;
  int lanes, steps;  // of a block
  int64_t strips;    // blocks along inner
  int64_t segments, segment_rows;
  typename Op::State* partial;  // (outer, segments, inner), more than one segment only
};

// The thread's part of a strip; rows are counted in scan order.
template <class Op, int kVec>
struct ColumnStrip {
  using In = Vec<typename Op::In, kVec>;
  const typename Op::In* x;
  int64_t out;  // offset of the first row in y
  int64_t n, inner, x_row;
  bool reverse, active;

  __device__ int64_t memory_row(int64_t row) const { return reverse ? n - 1 - row : row; }

  template <int kRows>
  __device__ void load(int64_t row, int64_t end, Packed<In> (&in)[kRows]) const {
    In padding;
#pragma unroll
    for (int i = 0; i < kVec; ++i) padding.value[i] = Op::pad();
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      in[k] = pack(padding);
      if (active && row + k < end) {
        in[k] =
            load_evict_last(reinterpret_cast<const Packed<In>*>(x + memory_row(row + k) * x_row));
      }
    }
  }
};

template <class Op, int kVec>
using ColumnStates = typename Op::State[kVec];

// Totals of all steps, then one thread per column turns them into what each step starts from.
template <class Op, int kVec>
__device__ __forceinline__ void scan_steps(typename Op::State* shared, int lane, int step,
                                           int lanes, int steps, ColumnStates<Op, kVec>& state,
                                           typename Op::State& carry) {
  const int columns = lanes * kVec;
  auto* mine = shared + step * columns + lane * kVec;
#pragma unroll
  for (int i = 0; i < kVec; ++i) mine[i] = state[i];
  __syncthreads();
  if (threadIdx.x < columns) {
    auto* total = shared + threadIdx.x;
#pragma unroll 8
    for (int s = 0; s < steps; ++s, total += columns) {
      const auto t = *total;
      *total = carry;
      carry = Op::combine(carry, t);
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kVec; ++i) state[i] = mine[i];
}

// What segment `segment` starts from: the totals of the segments before it, in order.
template <class Op, int kVec>
__device__ void start_segment(const ScanColumns<Op>& p, typename Op::State* shared, int lane,
                              int step, int64_t at, int64_t segment, bool active,
                              typename Op::State& carry) {
  ColumnStates<Op, kVec> state;
#pragma unroll
  for (int i = 0; i < kVec; ++i) state[i] = Op::identity();
  const int64_t share = ceil_div(segment, p.steps);
  const int64_t end = min(segment, (step + 1) * share);
#pragma unroll 4
  for (int64_t s = step * share; active && s < end; ++s) {
    const auto* part = p.partial + at + s * p.inner;
#pragma unroll
    for (int i = 0; i < kVec; ++i) state[i] = Op::combine(state[i], part[i]);
  }
  scan_steps<Op, kVec>(shared, lane, step, p.lanes, p.steps, state, carry);
  __syncthreads();
}

template <class Op, int kVec, int kRows>
__device__ __forceinline__ void emit(const ScanColumns<Op>& p, const ColumnStrip<Op, kVec>& strip,
                                     int64_t row, int64_t end,
                                     const Packed<Vec<typename Op::In, kVec>> (&in)[kRows],
                                     ColumnStates<Op, kVec>& state) {
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const auto v = unpack(in[k]);
    Vec<typename Op::Out, kVec> out;
    Vec<int64_t, kVec> index;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const auto next = Op::combine(state[i], Op::lift(v.value[i], row + k));
      out.value[i] = Op::value(p.exclusive ? state[i] : next);
      if constexpr (Op::kIndexed) index.value[i] = next.index;
      state[i] = next;
    }
    if (strip.active && row + k < end) {
      const int64_t at = strip.out + strip.memory_row(row + k) * p.inner;
      store_whole(p.y + at, out);
      if constexpr (Op::kIndexed) store_whole(p.index + at, index);
    }
  }
}

// totals_only: writes the totals of the segments instead of the scan.
template <class Op, int kVec>
__global__ void __launch_bounds__(kColumnThreads, sizeof(typename Op::State) > 4 ? 2 : 4)
    scan_columns_kernel(const ScanColumns<Op> p, bool totals_only) {
  using State = typename Op::State;
  __shared__ State shared[2][kColumnThreads * kVec];
  wait_for_predecessor();

  // This block's part
  const int lane = threadIdx.x % p.lanes, step = threadIdx.x / p.lanes;
  const int64_t strip_index = blockIdx.x % p.strips, rest = blockIdx.x / p.strips;
  const int64_t segment = rest % p.segments, o = rest / p.segments;
  const int64_t column = (strip_index * p.lanes + lane) * kVec;
  const ColumnStrip<Op, kVec> strip{p.x + o * p.x_outer + column,
                                    o * p.n * p.inner + column,
                                    p.n,
                                    p.inner,
                                    p.x_row,
                                    p.reverse,
                                    column < p.inner};
  const int64_t begin = segment * p.segment_rows, end = min(p.n, begin + p.segment_rows);
  const int64_t block_rows = int64_t{p.steps} * kColumnRows;
  const int64_t partial_at = o * p.segments * p.inner;

  State carry = Op::identity();  // of column threadIdx.x of the strip
  if (!totals_only && segment > 0) {
    start_segment<Op, kVec>(p, shared[0], lane, step, partial_at + column, segment, strip.active,
                            carry);
  }

  Packed<Vec<typename Op::In, kVec>> in[kColumnRows], next[kColumnRows];
  strip.load(begin + step * kColumnRows, end, next);
  int buffer = 0;
  for (int64_t base = begin; base < end; base += block_rows, buffer ^= 1) {
    const int64_t row = base + step * kColumnRows;
#pragma unroll
    for (int k = 0; k < kColumnRows; ++k) in[k] = next[k];
    strip.load(row + block_rows, end, next);
    ColumnStates<Op, kVec> state;
#pragma unroll
    for (int i = 0; i < kVec; ++i) state[i] = Op::identity();
#pragma unroll
    for (int k = 0; k < kColumnRows; ++k) {
      const auto v = unpack(in[k]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        state[i] = Op::combine(state[i], Op::lift(v.value[i], row + k));
      }
    }
    scan_steps<Op, kVec>(shared[buffer], lane, step, p.lanes, p.steps, state, carry);
#pragma unroll
    for (int k = 0; k < kColumnRows; ++k) stay_packed(in[k]);
    if (!totals_only) emit(p, strip, row, end, in, state);
  }

  const int64_t column_of_thread = strip_index * p.lanes * kVec + threadIdx.x;
  if (totals_only && threadIdx.x < p.lanes * kVec && column_of_thread < p.inner) {
    p.partial[partial_at + segment * p.inner + column_of_thread] = carry;
  }
}

// Rows of a vector that a thread has on their way, and as many that it works on.
template <class Op, int kVec>
inline constexpr int kShortRows =
    std::clamp(kShortColumnBytes / (kVec * static_cast<int>(sizeof(typename Op::In))), kColumnRows,
               kMostColumnRows);

// A thread has a vector of columns to itself, all the way down.
template <class Op, int kVec>
__global__ void __launch_bounds__(kColumnThreads, sizeof(typename Op::State) > 4 ? 2 : 4)
    scan_short_columns_kernel(const ScanColumns<Op> p) {
  wait_for_predecessor();
  const int64_t vectors = ceil_div(p.inner, int64_t{kVec});
  const int64_t thread = int64_t{blockIdx.x} * kColumnThreads + threadIdx.x;
  const int64_t o = divide(thread, vectors), column = (thread - o * vectors) * kVec;
  if (o >= p.outer) return;
  const ColumnStrip<Op, kVec> strip{p.x + o * p.x_outer + column,
                                    o * p.n * p.inner + column,
                                    p.n,
                                    p.inner,
                                    p.x_row,
                                    p.reverse,
                                    true};
  ColumnStates<Op, kVec> state;
#pragma unroll
  for (int i = 0; i < kVec; ++i) state[i] = Op::identity();
  constexpr int kRows = kShortRows<Op, kVec>;
  Packed<Vec<typename Op::In, kVec>> in[kRows], next[kRows];
  strip.load(0, p.n, next);
#pragma unroll 1
  for (int64_t row = 0; row < p.n; row += kRows) {
#pragma unroll
    for (int k = 0; k < kRows; ++k) in[k] = next[k];
    strip.load(row + kRows, p.n, next);
    emit(p, strip, row, p.n, in, state);
  }
}

// Whether a thread takes all rows of its columns.
template <class Op>
bool is_short_column(const ScanColumns<Op>& p, int vec, int sm_count) {
  return p.n <= kShortColumn || p.outer * (p.inner / vec) >= sm_count * kFullColumns;
}

template <class Op, int kVec>
int64_t short_column_blocks(const ScanColumns<Op>& p) {
  return ceil_div(p.outer * ceil_div(p.inner, int64_t{kVec}), int64_t{kColumnThreads});
}

template <class Op, int kVec>
void launch_short_columns(const ScanColumns<Op>& p, bool overlap, cudaStream_t stream) {
  launch_kernel(scan_short_columns_kernel<Op, kVec>,
                dim3(static_cast<unsigned>(short_column_blocks<Op, kVec>(p))), dim3(kColumnThreads),
                0, stream, overlap, p);
}

// Strips and segments that give every SM work.
template <class Op>
void plan_columns(ScanColumns<Op>& p, int vec, int sm_count) {
  constexpr int kNarrow = 8;  // lanes of 16 bytes: a full cache line
  const int64_t vectors = ceil_div(p.inner, vec);
  // NOTE: steps beyond the rows of a short n would idle, but each column of a vector has a thread.
  const int64_t useful = std::max<int64_t>(vec, ceil_div(p.n, kColumnRows));
  const int most_steps =
      useful < kColumnMaxSteps ? std::bit_ceil(unsigned(useful)) : kColumnMaxSteps;
  const auto shape = [&](int lanes) {
    p.lanes = lanes;
    p.steps = std::min(kColumnThreads / lanes, most_steps);
    p.strips = ceil_div(vectors, lanes);
  };
  const int most_lanes = std::max(32, kColumnThreads / most_steps);
  int lanes = 1;
  while (lanes < most_lanes && lanes < vectors) lanes *= 2;
  shape(lanes);
  while (p.lanes > kNarrow && p.strips * p.outer < 4 * sm_count) shape(p.lanes / 2);

  p.segments = 1;
  p.segment_rows = p.n;
  const int64_t rows = int64_t{p.steps} * kColumnRows;
  const int64_t threads = p.strips * p.outer * p.lanes * p.steps;
  if (threads >= int64_t{sm_count} * 512 || p.n < 4 * rows) return;
  const int64_t wanted = std::min({ceil_div(int64_t{sm_count} * 1024, threads),
                                   ceil_div(p.n, 2 * rows), int64_t{kColumnMaxSegments}});
  p.segment_rows = round_up(ceil_div(p.n, wanted), rows);
  p.segments = ceil_div(p.n, p.segment_rows);
}

template <class Op>
int64_t columns_bytes(const ScanColumns<Op>& p) {
  return p.segments > 1 ? p.outer * p.segments * p.inner * sizeof(typename Op::State) : 0;
}

template <class Op, int kVec>
void launch_scan_columns(const ScanColumns<Op>& p, bool overlap, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(p.strips * p.segments * p.outer));
  for (const bool totals_only : {true, false}) {
    if (totals_only && p.segments == 1) continue;
    launch_kernel(scan_columns_kernel<Op, kVec>, blocks, dim3(p.lanes * p.steps), 0, stream,
                  overlap, p, totals_only);
  }
}

}  // namespace fusedops
