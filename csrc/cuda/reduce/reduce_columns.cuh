// Pass 1 where the innermost dimension is kept (columns), and pass 2, which is one of those too.
#pragma once

#include "csrc/common/device/division.cuh"
#include "csrc/common/device/pdl.cuh"
#include "csrc/cuda/reduce/reduce_shifted.cuh"

namespace fusedops {

// Where a thread of columns_kernel stands. A block holds threads_x * kVec columns, threads_y rows
// and threads_b batch entries.
struct ColumnThread {
  int64_t batch, slice, column;  // the first of its columns
  int y;

  __device__ ColumnThread(const ReducePlan& plan, int vec) {
    const int group = plan.threads_x * plan.threads_y;
    // NOTE: 32-bit divisions: a grid has fewer than 2^31 blocks.
    const auto width_blocks =
        static_cast<uint32_t>(ceil_div(plan.width(), int64_t{plan.threads_x} * vec));
    const uint32_t rest = blockIdx.x / width_blocks, x = blockIdx.x - rest * width_blocks;
    const auto splits = static_cast<uint32_t>(plan.splits);
    const uint32_t outer = rest / splits;
    slice = rest - outer * splits;
    batch = int64_t{outer} * plan.threads_b + threadIdx.x / group;
    column = (int64_t{x} * plan.threads_x + threadIdx.x % plan.threads_x) * vec;
    y = threadIdx.x % group / plan.threads_x;
  }
};

// What a thread has of its columns: the rows y, y + threads_y, ... of the slice. Positions are
// (folded) rows of the slice.
template <class Op, int kVec>
__device__ __forceinline__ void reduce_columns(typename Op::Running (&acc)[kVec],
                                               const ColumnThread& at, const ReducePlace& place,
                                               const ReduceArgs& args) {
  using T = typename Op::Element;
  const ReducePlan& plan = args.plan;
  const int64_t rows = plan.fold == 1 ? plan.reduced : plan.reduced / plan.fold;
  const int64_t chunk = plan.fold == 1 ? plan.chunk : plan.chunk / plan.fold;
  const int64_t begin = at.slice * chunk;
  const int count = static_cast<int>(min(chunk, rows - begin));
  const int64_t stride = plan.reduced_stride * plan.fold;
  const T* x =
      static_cast<const T*>(args.x) + place.in + begin * stride + at.column * plan.col_stride;

  // NOTE: single elements are a quarter of a vector or less: more of them on their way.
  constexpr int kRows = kVec == 1 ? 2 * kReduceUnroll : kReduceUnroll;
  int row = at.y;
#pragma unroll 1
  for (; row + (kRows - 1) * plan.threads_y < count; row += kRows * plan.threads_y) {
    Vec<T, kVec> loaded[kRows];
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      loaded[u] = load_vector<T, kVec>(x + (row + u * plan.threads_y) * stride);
    }
    absorb_rows<Op, kVec>(acc, loaded, row, plan.threads_y, args.options);
  }
  if (row < count) {
    Vec<T, kVec> loaded[kRows - 1][1];
#pragma unroll
    for (int u = 0; u < kRows - 1; ++u) {
      const int r = row + u * plan.threads_y;
      if (r < count) loaded[u][0] = load_vector<T, kVec>(x + r * stride);
    }
#pragma unroll
    for (int u = 0; u < kRows - 1; ++u) {
      const int r = row + u * plan.threads_y;
      if (r < count) absorb_rows<Op, kVec>(acc, loaded[u], r, 0, args.options);
    }
  }

  // The ragged rest of a fold
  if (plan.fold > 1 && at.slice == plan.splits - 1 && at.y == 0) {
    const int64_t left = (plan.reduced - rows * plan.fold) * plan.cols - at.column;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if (i < left) {
        absorb_vector<Op, 1>(acc[i], load_vector<T, 1>(x + count * stride + i), count,
                             args.options);
      }
    }
  }
}

// values[i] = values[i + by]; what has none keeps what it was.
template <int kVec, class T>
__device__ __forceinline__ void move_down(T (&values)[kVec], int by) {
#pragma unroll
  for (int bit = 1; bit < kVec; bit *= 2) {
    if (by & bit) {
#pragma unroll
      for (int i = 0; i + bit < kVec; ++i) values[i] = values[i + bit];
    }
  }
}

// The same over rows that are not aligned.
// NOTE: where the last vector of columns is a part of one, its thread reads the vector that ends
// with the row, and keeps the end of it: a warp that went element by element would be the last.
template <class Op, int kVec>
__device__ __forceinline__ void reduce_shifted_columns(typename Op::Running (&acc)[kVec],
                                                       const ColumnThread& at,
                                                       const ReducePlace& place,
                                                       const ReduceArgs& args) {
  using T = typename Op::Element;
  const ReducePlan& plan = args.plan;
  const int64_t begin = at.slice * plan.chunk, stride = plan.reduced_stride;
  const int rows = static_cast<int>(min(plan.chunk, plan.reduced - begin));
  if (at.y >= rows) return;
  const int64_t column = min(at.column, plan.cols - kVec);
  const T* x = static_cast<const T*>(args.x) + place.in + begin * stride + column;

  reduce_readable<Op, kVec>(acc, x, at.y, plan.threads_y, rows, stride, args);
  move_down(acc, static_cast<int>(at.column - column));
}

// The accumulators of a thread's columns, with the logical indices of their rows.
template <class Op, int kVec>
__device__ __forceinline__ void settle_columns(typename Op::Acc (&acc)[kVec],
                                               const typename Op::Running (&running)[kVec],
                                               const ColumnThread& at, const ReducePlace& place,
                                               const ReducePlan& plan) {
  const int64_t base = Op::kIndexed ? place.index + at.slice * plan.chunk * plan.index_step : 0;
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    const int64_t folded = Op::kIndexed && plan.fold > 1 ? (at.column + i) / plan.cols : 0;
    acc[i] = Op::settle(running[i], base + folded * plan.index_step, plan.index_step * plan.fold);
  }
}

template <class Op>
__device__ __forceinline__ void emit_column(const ReduceArgs& args, const typename Op::Acc& acc,
                                            const ReducePlace& place, int64_t slice,
                                            int64_t column) {
  const ReducePlan& plan = args.plan;
  int64_t folded = 0;
  if (plan.fold > 1) {
    folded = column / plan.cols;
    column -= folded * plan.cols;
  }
  const int64_t part = slice * plan.fold + folded;
  emit<Op>(args, acc, place.slot + part * plan.outputs + column * plan.col_out);
}

// One thread holds all its rows: neighbouring outputs leave as a vector.
template <class Op, int kVec>
__device__ __forceinline__ void emit_columns(const ReduceArgs& args, typename Op::Acc (&acc)[kVec],
                                             const ReducePlace& place, const ColumnThread& at) {
  const ReducePlan& plan = args.plan;
  if constexpr (kVec > 1) {
    const bool whole = at.column + kVec <= plan.width();
    if (whole && plan.parts == 1 && plan.col_out == 1 && place.slot % kVec == 0) {
      finish_outputs<Op>(args, acc, place.slot + at.column);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    if (kVec == 1 || at.column + i < plan.width()) {
      emit_column<Op>(args, acc[i], place, at.slice, at.column + i);
    }
  }
}

// kVec = 1: any column stride. kShifted: rows of any alignment.
template <class Op, int kVec, bool kShifted = false>
__global__ void __launch_bounds__(kReduceThreads, kShifted ? shifted_blocks<Op>() : 3)
    columns_kernel(const __grid_constant__ ReduceArgs args) {
  using Acc = typename Op::Acc;
  // As many of a thread's columns at a time as fit 16 KB
  constexpr int kFit = sizeof(Acc) <= 4 ? 16 : sizeof(Acc) <= 8 ? 8 : sizeof(Acc) <= 16 ? 4 : 2;
  constexpr int kBatch = kFit < kVec ? kFit : kVec;
  __shared__ Acc shared[kBatch][kReduceThreads];
  wait_for_predecessor();
  const ReducePlan& plan = args.plan;
  const ColumnThread at(plan, kVec);
  const bool valid = at.batch < plan.batches && at.column < plan.width();
  const ReducePlace place = place_of(plan, at.batch < plan.batches ? at.batch : 0);

  typename Op::Running running[kVec];
#pragma unroll
  for (int i = 0; i < kVec; ++i) running[i] = Op::start(args.options);
  if constexpr (kShifted) {
    if (valid) reduce_shifted_columns<Op, kVec>(running, at, place, args);
  } else {
    if (valid) reduce_columns<Op, kVec>(running, at, place, args);
  }
  Acc acc[kVec];
  settle_columns<Op, kVec>(acc, running, at, place, plan);
  if (plan.threads_y == 1) {
    if (valid) emit_columns<Op, kVec>(args, acc, place, at);
    return;
  }

  // Rows within a warp
  const int group = plan.threads_x * plan.threads_y;
  for (int delta = min(group, 32) / 2; delta >= plan.threads_x; delta /= 2) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) Op::combine(acc[i], shuffle_down(acc[i], delta), args.options);
  }
  if (group <= 32) {
    if (valid && at.y == 0) emit_columns<Op, kVec>(args, acc, place, at);
    return;
  }

  // Warps: thread k < threads_x * kBatch of a batch entry takes one column
  const int step = max(plan.threads_x, 32), base = threadIdx.x / group * group;
#pragma unroll
  for (int first = 0; first < kVec; first += kBatch) {
    if (first > 0) __syncthreads();
#pragma unroll
    for (int i = 0; i < kBatch; ++i) shared[i][threadIdx.x] = acc[first + i];
    __syncthreads();
    for (int k = threadIdx.x - base; k < plan.threads_x * kBatch; k += group) {
      const int i = k % kBatch, x = k / kBatch;
      Acc sum = shared[i][base + x];
      for (int other = step; other < group; other += step) {
        Op::combine(sum, shared[i][base + other + x], args.options);
      }
      const int own_x = threadIdx.x % plan.threads_x;
      const int64_t column = at.column + (x - own_x) * kVec + first + i;
      if (at.batch < plan.batches && column < plan.width()) {
        emit_column<Op>(args, sum, place, at.slice, column);
      }
    }
  }
}

// Few rows, or columns that fill the GPU by themselves: no thread shares a column, so that blocks
// are short and small enough to hide each other's latency. Threads are numbered over all batch
// entries.
template <class Op>
__global__ void __launch_bounds__(kReduceThreads)
    few_rows_kernel(const __grid_constant__ ReduceArgs args) {
  using T = typename Op::Element;
  constexpr int kVec = kVecOf<T>;
  wait_for_predecessor();
  const ReducePlan& plan = args.plan;
  const int64_t vectors = plan.cols / kVec;
  const int64_t item = int64_t{blockIdx.x} * plan.threads_x + threadIdx.x;
  const int64_t batch = divide(item, vectors), column = (item - batch * vectors) * kVec;
  if (batch >= plan.batches) return;
  const ReducePlace place = place_of(plan, batch);
  const T* from = static_cast<const T*>(args.x) + place.in + column;
  const int64_t output = place.slot + column;
  const int rows = static_cast<int>(plan.reduced);

  typename Op::Running running[kVec];
#pragma unroll
  for (int i = 0; i < kVec; ++i) running[i] = Op::start(args.options);
#pragma unroll 1
  for (int row = 0; row < rows; row += kReduceUnroll) {
    Vec<T, kVec> loaded[kReduceUnroll][1];
#pragma unroll
    for (int u = 0; u < kReduceUnroll; ++u) {
      if (row + u < rows) loaded[u][0] = load_vector<T, kVec>(from + u * plan.reduced_stride);
    }
    from += kReduceUnroll * plan.reduced_stride;
#pragma unroll
    for (int u = 0; u < kReduceUnroll; ++u) {
      if (row + u < rows) absorb_rows<Op, kVec>(running, loaded[u], row + u, 0, args.options);
    }
  }
  typename Op::Acc acc[kVec];
#pragma unroll
  for (int i = 0; i < kVec; ++i) acc[i] = Op::settle(running[i], place.index, plan.index_step);
  finish_outputs<Op>(args, acc, output);
}

// One element an output: the reduced dimensions are of size 1.
template <class Op>
__global__ void __launch_bounds__(kReduceThreads)
    singles_kernel(const __grid_constant__ ReduceArgs args) {
  using T = typename Op::Element;
  wait_for_predecessor();
  const ReducePlan& plan = args.plan;
  const int64_t first = int64_t{blockIdx.x} * kReduceThreads * kReduceSingles + threadIdx.x;
  const T* x = static_cast<const T*>(args.x);
  Vec<T, 1> loaded[kReduceSingles];
#pragma unroll
  for (int u = 0; u < kReduceSingles; ++u) {
    const int64_t column = first + u * kReduceThreads;
    if (column < plan.cols) loaded[u] = load_vector<T, 1>(x + column * plan.col_stride);
  }
#pragma unroll
  for (int u = 0; u < kReduceSingles; ++u) {
    const int64_t column = first + u * kReduceThreads;
    if (column >= plan.cols) break;
    typename Op::Running running = Op::start(args.options);
    absorb_vector<Op, 1>(running, loaded[u], 0, args.options);
    emit<Op>(args, Op::settle(running, 0, plan.index_step), column * plan.col_out);
  }
}

inline constexpr int kCombineThreads = 512;

// Pass 2: out[o] = the parts of o in order. A block holds blockDim.x outputs, blockDim.y parts.
template <class Op>
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const __grid_constant__ ReduceArgs args) {
  using Acc = typename Op::Acc;
  __shared__ Acc shared[kCombineThreads];
  wait_for_predecessor();
  const int64_t output = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t outputs = args.plan.outputs, parts = args.plan.parts;
  Acc acc = Op::identity(args.options);
  if (output < outputs) {
    const Acc* partial = static_cast<const Acc*>(args.partial) + output;
#pragma unroll 8
    for (int64_t part = threadIdx.y; part < parts; part += blockDim.y) {
      Op::combine(acc, partial[part * outputs], args.options);
    }
  }
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  shared[thread] = acc;
  for (int half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) {
      Op::combine(acc, shared[thread + half * blockDim.x], args.options);
      shared[thread] = acc;
    }
  }
  if (threadIdx.y == 0 && output < outputs) {
    const Acc one[1] = {acc};
    finish_outputs<Op>(args, one, output);
  }
}

}  // namespace fusedops
