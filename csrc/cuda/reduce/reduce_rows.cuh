// Pass 1 where the innermost dimension is reduced: rows.
#pragma once

#include "csrc/common/device/pdl.cuh"
#include "csrc/cuda/reduce/reduce_device.cuh"

namespace fusedops {

// Rows of at most 32 aligned vectors: threads_x lanes per row, kPerLane vectors each, kReduceUnroll
// vectors of a thread in flight.
template <class Op, int kPerLane>
__global__ void __launch_bounds__(kReduceThreads)
    short_rows_kernel(const __grid_constant__ ReduceArgs args) {
  using T = typename Op::Element;
  constexpr int kVec = kVecOf<T>, kRows = kReduceUnroll / kPerLane;
  wait_for_predecessor();
  const ReducePlan& plan = args.plan;
  const int lane = threadIdx.x % plan.threads_x;
  const int64_t first = int64_t{blockIdx.x} * plan.threads_y * kRows + threadIdx.x / plan.threads_x;
  const int count = static_cast<int>(plan.reduced) / kVec;  // of vectors

  Vec<T, kVec> vectors[kRows][kPerLane];
  ReducePlace places[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = first + r * plan.threads_y;
    if (row >= plan.batches) break;
    places[r] = place_of(plan, row);
    const T* x = static_cast<const T*>(args.x) + places[r].in;
#pragma unroll
    for (int v = 0; v < kPerLane; ++v) {
      const int position = lane + v * plan.threads_x;
      if (position < count) vectors[r][v] = load_vector<T, kVec>(x + position * kVec);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const bool valid = first + r * plan.threads_y < plan.batches;
    typename Op::Running running = Op::start(args.options);
#pragma unroll
    for (int v = 0; v < kPerLane; ++v) {
      const int position = lane + v * plan.threads_x;
      if (valid && position < count) {
        absorb_vector<Op, kVec>(running, vectors[r][v], position * kVec, args.options);
      }
    }
    typename Op::Acc acc = Op::settle(running, places[r].index, plan.index_step);
    combine_lanes<Op>(acc, plan.threads_x, args.options);
    if (valid && lane == 0) emit<Op>(args, acc, places[r].slot);
  }
}

// Dense rows of kRow elements, several in a vector: kReduceUnroll vectors per thread.
template <class Op, int kRow>
__global__ void __launch_bounds__(kReduceThreads)
    packed_rows_kernel(const __grid_constant__ ReduceArgs args) {
  using T = typename Op::Element;
  constexpr int kVec = kVecOf<T>, kRows = kVec / kRow;
  wait_for_predecessor();
  const ReducePlan& plan = args.plan;
  const int64_t first =
      (int64_t{blockIdx.x} * kReduceUnroll * kReduceThreads + threadIdx.x) * kRows;
  const T* x = static_cast<const T*>(args.x);

  Vec<T, kVec> vectors[kReduceUnroll];
#pragma unroll
  for (int u = 0; u < kReduceUnroll; ++u) {
    const int64_t row = first + u * kReduceThreads * kRows;
    if (row + kRows <= plan.batches) {
      vectors[u] = load_vector<T, kVec>(x + row * kRow);
    } else {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        if (row + i / kRow < plan.batches) vectors[u].value[i] = x[row * kRow + i];
      }
    }
  }
#pragma unroll
  for (int u = 0; u < kReduceUnroll; ++u) {
    const int64_t row = first + u * kReduceThreads * kRows;
    typename Op::Acc acc[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Vec<T, kRow> elements;
#pragma unroll
      for (int i = 0; i < kRow; ++i) elements.value[i] = vectors[u].value[r * kRow + i];
      typename Op::Running running = Op::start(args.options);
      absorb_vector<Op, kRow>(running, elements, 0, args.options);
      acc[r] = Op::settle(running, 0, plan.index_step);
    }
    if (row + kRows <= plan.batches) {
      finish_outputs<Op>(args, acc, row);
    } else {
      for (int r = 0; r < kRows && row + r < plan.batches; ++r) emit<Op>(args, acc[r], row + r);
    }
  }
}

// A lane's part of a row in shared memory: every threads_x-th granule of N elements.
template <class Op, int N>
__device__ __forceinline__ typename Op::Running reduce_granules(const typename Op::Element* row,
                                                                int begin, int end, int lane,
                                                                const ReduceArgs& args) {
  using T = typename Op::Element;
  typename Op::Running acc = Op::start(args.options);
  const int step = args.plan.threads_x * N;
#pragma unroll 4
  for (int i = begin + lane * N; i < end; i += step) {
    absorb_vector<Op, N>(acc, load_vector<T, N>(row + i), i, args.options);
  }
  return acc;
}

// The same by the widest granules that every row has. A row of an odd number of 2-byte elements is
// read by words, but for one end.
template <class Op>
__device__ __forceinline__ typename Op::Acc reduce_staged(const typename Op::Element* row, int lane,
                                                          int64_t index, const ReduceArgs& args) {
  using T = typename Op::Element;
  constexpr int kSize = sizeof(T), k8 = kSize < 8 ? 8 / kSize : 1, k4 = kSize < 4 ? 4 / kSize : 1;
  const int length = static_cast<int>(args.plan.reduced), bytes = length * kSize;
  const int64_t step = args.plan.index_step;
  if (bytes % 8 == 0) {
    return Op::settle(reduce_granules<Op, k8>(row, 0, length, lane, args), index, step);
  }
  if (bytes % 4 == 0) {
    return Op::settle(reduce_granules<Op, k4>(row, 0, length, lane, args), index, step);
  }
  if constexpr (kSize == 2) {
    const int odd = reinterpret_cast<uintptr_t>(row) / 2 % 2;
    typename Op::Acc acc =
        Op::settle(reduce_granules<Op, 2>(row, odd, length - 1 + odd, lane, args), index, step);
    if (lane == 0) {
      const int end = odd ? 0 : length - 1;
      typename Op::Running last = Op::start(args.options);
      absorb_vector<Op, 1>(last, load_vector<T, 1>(row + end), end, args.options);
      Op::combine(acc, Op::settle(last, index, step), args.options);
    }
    return acc;
  }
  return Op::settle(reduce_granules<Op, 1>(row, 0, length, lane, args), index, step);
}

// Dense short rows of any length: a tile of whole rows goes through shared memory by vectors, all
// of them on their way at a time.
template <class Op>
__global__ void __launch_bounds__(kReduceThreads)
    staged_rows_kernel(const __grid_constant__ ReduceArgs args) {
  using T = typename Op::Element;
  constexpr int kVec = kVecOf<T>;
  __shared__ Vec<T, kVec> tile[kReduceTileBytes / 16];
  wait_for_predecessor();
  const ReducePlan& plan = args.plan;
  const int64_t first = int64_t{blockIdx.x} * plan.tile_rows;
  const int rows = static_cast<int>(min(plan.tile_rows, plan.batches - first));
  const int length = static_cast<int>(plan.reduced);
  const T* x = static_cast<const T*>(args.x) + first * length;

  stage_tile(tile, x, rows * length);
  const T* elements = reinterpret_cast<const T*>(tile);

  // Rows
  const int lane = threadIdx.x % plan.threads_x;
  for (int base = 0; base < rows; base += plan.threads_y) {
    const int row = base + threadIdx.x / plan.threads_x;
    const ReducePlace place = place_of(plan, first + row);
    typename Op::Acc acc = Op::identity(args.options);
    if (row < rows) acc = reduce_staged<Op>(elements + row * length, lane, place.index, args);
    if (plan.threads_x > 1) combine_lanes<Op>(acc, plan.threads_x, args.options);
    if (row < rows && lane == 0) emit<Op>(args, acc, place.slot);
  }
}

// A thread's part of the slice [p, p + count), which starts at the logical index `index`.
template <class Op, bool kContiguous>
__device__ __forceinline__ typename Op::Acc reduce_slice(const typename Op::Element* p, int count,
                                                         int64_t index, const ReduceArgs& args) {
  using T = typename Op::Element;
  constexpr int kVec = kContiguous ? kVecOf<T> : 1;
  const int64_t stride = kContiguous ? 1 : args.plan.reduced_stride;
  const int lane = threadIdx.x, lanes = blockDim.x;
  typename Op::Running acc = Op::start(args.options), ends = acc;

  // Up to the first aligned vector, and behind the last one
  int head = 0;
  if constexpr (kContiguous) {
    head = static_cast<int>((16 - reinterpret_cast<uintptr_t>(p) % 16) % 16 / sizeof(T));
    if (head > count) head = count;
  }
  const int vectors = (count - head) / kVec;
  const T* body = p + head;
  if constexpr (kContiguous) {
    if (lane < head) absorb_vector<Op, 1>(ends, load_vector<T, 1>(p + lane), lane, args.options);
    const int tail = head + vectors * kVec + lane;
    if (tail < count) absorb_vector<Op, 1>(ends, load_vector<T, 1>(p + tail), tail, args.options);
  }

  // Vectors
  int base = 0;
#pragma unroll 1
  for (; base + kReduceUnroll * lanes <= vectors; base += kReduceUnroll * lanes) {
    Vec<T, kVec> loaded[kReduceUnroll];
#pragma unroll
    for (int u = 0; u < kReduceUnroll; ++u) {
      loaded[u] = load_vector<T, kVec>(body + (base + lane + u * lanes) * kVec * stride);
    }
#pragma unroll
    for (int u = 0; u < kReduceUnroll; ++u) {
      absorb_vector<Op, kVec>(acc, loaded[u], head + (base + lane + u * lanes) * kVec,
                              args.options);
    }
  }
  if (base < vectors) {
    const int left = vectors - base;
    Vec<T, kVec> loaded[kReduceUnroll];
#pragma unroll
    for (int u = 0; u < kReduceUnroll; ++u) {
      if (lane + u * lanes < left) {
        loaded[u] = load_vector<T, kVec>(body + (base + lane + u * lanes) * kVec * stride);
      }
    }
#pragma unroll
    for (int u = 0; u < kReduceUnroll; ++u) {
      if (lane + u * lanes < left) {
        absorb_vector<Op, kVec>(acc, loaded[u], head + (base + lane + u * lanes) * kVec,
                                args.options);
      }
    }
  }
  typename Op::Acc sum = Op::settle(acc, index, args.plan.index_step);
  if constexpr (kContiguous) {
    Op::combine(sum, Op::settle(ends, index, args.plan.index_step), args.options);
  }
  return sum;
}

// Rows of any length and alignment: threads_x threads per slice of a row, no fewer than a vector
// has elements.
template <class Op, bool kContiguous>
__global__ void __launch_bounds__(kMostReduceThreads)
    long_rows_kernel(const __grid_constant__ ReduceArgs args) {
  using T = typename Op::Element;
  using Acc = typename Op::Acc;
  __shared__ Acc shared[32];
  wait_for_predecessor();
  const ReducePlan& plan = args.plan;
  const int64_t item = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const int64_t row = plan.splits == 1 ? item : item / plan.splits;
  const int64_t slice = item - row * plan.splits;
  const bool valid = row < plan.batches;
  const ReducePlace place = place_of(plan, valid ? row : 0);

  Acc acc = Op::identity(args.options);
  if (valid) {
    const int64_t begin = slice * plan.chunk;
    const int count = static_cast<int>(min(plan.chunk, plan.reduced - begin));
    acc = reduce_slice<Op, kContiguous>(
        static_cast<const T*>(args.x) + place.in + begin * plan.reduced_stride, count,
        place.index + begin * plan.index_step, args);
  }

  // Lanes, then warps
  combine_lanes<Op>(acc, min(static_cast<int>(blockDim.x), 32), args.options);
  const int warps = blockDim.x / 32;
  if (warps > 1) {
    const int warp = threadIdx.y * warps + threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) shared[warp] = acc;
    __syncthreads();
    if (threadIdx.x < 32) {
      acc = threadIdx.x < warps ? shared[threadIdx.y * warps + threadIdx.x]
                                : Op::identity(args.options);
      combine_lanes<Op>(acc, 32, args.options);
    }
  }
  if (valid && threadIdx.x == 0) {
    emit<Op>(args, acc, place.slot + slice * plan.outputs);
  }
}

}  // namespace fusedops
