// Pass 1 over short dense rows whose columns are kept: several rows in a vector, or whole batch
// entries in shared memory.
#pragma once

#include "csrc/common/device/pdl.cuh"
#include "csrc/cuda/reduce/reduce_shifted.cuh"

namespace fusedops {

// Where a thread of packed_columns_kernel stands. A block holds threads_b batch entries, threads_x
// threads each; the first `active` of those read, every active-th vector. They are a multiple of
// `period`, the vectors after which columns repeat: an element of a thread keeps its column.
struct PackedThread {
  int64_t batch, slice;
  int lane, base, period;  // base: the block's thread that is lane 0

  __device__ PackedThread(const ReducePlan& plan, int vec) {
    const auto splits = static_cast<uint32_t>(plan.splits);
    const uint32_t outer = blockIdx.x / splits;
    slice = blockIdx.x - outer * splits;
    lane = threadIdx.x % plan.threads_x;
    base = threadIdx.x - lane;
    batch = int64_t{outer} * plan.threads_b + threadIdx.x / plan.threads_x;
    const int cols = static_cast<int>(plan.cols);
    period = cols / min(cols & -cols, vec);  // vec is a power of two
  }
};

// A thread's vectors of `count` dense elements from `x` on; positions are its vectors.
template <class Op, int kVec>
__device__ __forceinline__ void reduce_packed(typename Op::Running (&acc)[kVec],
                                              const typename Op::Element* x, int64_t count,
                                              int lane, const ReduceArgs& args) {
  using T = typename Op::Element;
  const int step = args.plan.active;
  // The vectors that load_shifted may read: the first and the last ones can be at the tensor's ends
  const int64_t whole = count / kVec;
  int64_t vector = lane;
  int position = 0;
  const auto one = [&](int64_t v) {
    const T* from = x + v * kVec;
    if (v < whole && shifted_readable(from, args)) {
      Vec<T, kVec> loaded[1] = {load_shifted(from)};
      absorb_rows<Op, kVec>(acc, loaded, position, 0, args.options);
    } else {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        if (v * kVec + i < count) {
          absorb_vector<Op, 1>(acc[i], load_vector<T, 1>(from + i), position, args.options);
        }
      }
    }
    ++position;
  };
  if (!shifted_readable(x + vector * kVec, args)) {
    one(vector);
    vector += step;
  }
#pragma unroll 1
  for (; vector + (kReduceUnroll - 1) * step < whole - 1; vector += kReduceUnroll * step) {
    Vec<T, kVec> loaded[kReduceUnroll];
#pragma unroll
    for (int u = 0; u < kReduceUnroll; ++u)
      loaded[u] = load_shifted(x + (vector + u * step) * kVec);
    absorb_rows<Op, kVec>(acc, loaded, position, 1, args.options);
    position += kReduceUnroll;
  }
#pragma unroll 1
  for (; vector * kVec < count; vector += step) one(vector);
}

// Dense rows of few columns. The replicas of a column are combined in the block: as threads by
// halves, then as the elements of one period.
template <class Op>
__global__ void __launch_bounds__(kReduceThreads, shifted_blocks<Op>())
    packed_columns_kernel(const __grid_constant__ ReduceArgs args) {
  using T = typename Op::Element;
  using Acc = typename Op::Acc;
  constexpr int kVec = kVecOf<T>;
  // As many of a thread's elements at a time as fit 16 KB
  constexpr int kFit = sizeof(Acc) <= 4 ? 16 : sizeof(Acc) <= 8 ? 8 : sizeof(Acc) <= 16 ? 4 : 2;
  constexpr int kBatch = kFit < kVec ? kFit : kVec;
  __shared__ Acc shared[kBatch * kReduceThreads];
  wait_for_predecessor();
  const ReducePlan& plan = args.plan;
  const PackedThread at(plan, kVec);
  const bool valid = at.batch < plan.batches;
  const ReducePlace place = place_of(plan, valid ? at.batch : 0);
  const int cols = static_cast<int>(plan.cols);
  const int64_t begin = at.slice * plan.chunk;

  typename Op::Running running[kVec];
#pragma unroll
  for (int i = 0; i < kVec; ++i) running[i] = Op::start(args.options);
  if (valid && at.lane < plan.active) {
    const int64_t rows = min(plan.chunk, plan.reduced - begin);
    reduce_packed<Op, kVec>(running, static_cast<const T*>(args.x) + place.in + begin * cols,
                            rows * cols, at.lane, args);
  }
  Acc acc[kVec];
  const int rows_a_step = plan.active * kVec / cols;
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    const int64_t row = begin + (at.lane * kVec + i) / cols;
    acc[i] =
        Op::settle(running[i], place.index + row * plan.index_step, plan.index_step * rows_a_step);
  }

  // Threads of the same columns
  const int replica = at.lane / at.period;
  for (int left = plan.active / at.period; left > 1;) {
    const int half = (left + 1) / 2;
#pragma unroll
    for (int first = 0; first < kVec; first += kBatch) {
      __syncthreads();
      if (replica >= half && replica < left) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) shared[i * kReduceThreads + threadIdx.x] = acc[first + i];
      }
      __syncthreads();
      if (replica < left - half) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          Op::combine(acc[first + i], shared[i * kReduceThreads + threadIdx.x + half * at.period],
                      args.options);
        }
      }
    }
    left = half;
  }

  // Elements of the same column: a period of them to a batch entry, which the plan makes fit
  const int elements = at.period * kVec;
  Acc* period = shared + threadIdx.x / plan.threads_x * elements;
  __syncthreads();
  if (replica == 0) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) period[at.lane * kVec + i] = acc[i];
  }
  __syncthreads();
  if (!valid) return;
  for (int column = at.lane; column < cols; column += plan.threads_x) {
    Acc sum = period[column];
    for (int other = column + cols; other < elements; other += cols) {
      Op::combine(sum, period[other], args.options);
    }
    emit<Op>(args, sum, place.slot + at.slice * plan.outputs + column * plan.col_out);
  }
}

// Small dense batch entries (reduced, cols): whole ones go through shared memory by vectors. A
// column of one is threads_y neighbouring lanes', each of which takes every threads_y-th row.
template <class Op>
__global__ void __launch_bounds__(kReduceThreads)
    staged_columns_kernel(const __grid_constant__ ReduceArgs args) {
  using T = typename Op::Element;
  __shared__ Vec<T, kVecOf<T>> tile[kReduceTileBytes / 16 + 1];
  wait_for_predecessor();
  const ReducePlan& plan = args.plan;
  const int64_t first = int64_t{blockIdx.x} * plan.tile_rows;
  const int batches = static_cast<int>(min(plan.tile_rows, plan.batches - first));
  const int rows = static_cast<int>(plan.reduced), cols = static_cast<int>(plan.cols);
  const T* elements = stage_unaligned(tile, static_cast<const T*>(args.x) + first * rows * cols,
                                      batches * rows * cols, args);

  const int lanes = plan.threads_y, lane = threadIdx.x % lanes;
  for (int base = 0; base < batches * cols; base += plan.threads_x) {
    const int output = base + threadIdx.x / lanes;
    const bool valid = output < batches * cols;
    const int batch = output / cols, column = output - batch * cols;
    const T* from = elements + batch * rows * cols + column;
    typename Op::Running running[1] = {Op::start(args.options)};
    int row = valid ? lane : rows;
#pragma unroll 1
    for (; row + (kReduceUnroll - 1) * lanes < rows; row += kReduceUnroll * lanes) {
      Vec<T, 1> loaded[kReduceUnroll];
#pragma unroll
      for (int u = 0; u < kReduceUnroll; ++u) {
        loaded[u] = load_vector<T, 1>(from + (row + u * lanes) * cols);
      }
      absorb_rows<Op, 1>(running, loaded, row, lanes, args.options);
    }
#pragma unroll 1
    for (; row < rows; row += lanes) {
      absorb_vector<Op, 1>(running[0], load_vector<T, 1>(from + row * cols), row, args.options);
    }
    const ReducePlace place = place_of(plan, valid ? first + batch : 0);
    typename Op::Acc acc = Op::settle(running[0], place.index, plan.index_step);
    if (lanes > 1) combine_lanes<Op>(acc, lanes, args.options);
    if (valid && lane == 0) emit<Op>(args, acc, place.slot + column * plan.col_out);
  }
}

}  // namespace fusedops
