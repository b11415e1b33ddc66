// Pass 1 over dense rows whose columns are kept and that no vector divides: a thread reads aligned
// vectors a whole number of rows apart, so that each of its elements keeps one column.
#pragma once

#include "csrc/common/device/pdl.cuh"
#include "csrc/cuda/reduce/reduce_device.cuh"

namespace fusedops {

// A slice of dense rows as aligned vectors: the first one may begin `lead` elements before it.
template <class T>
struct DenseSlice {
  static constexpr int kVec = kVecOf<T>;
  const T* base;         // aligned
  int lead, end, whole;  // elements from base to the slice and to behind it; whole vectors

  __device__ DenseSlice(const T* first, int count) {
    lead = static_cast<int>(reinterpret_cast<uintptr_t>(first) % 16 / sizeof(T));
    base = first - lead;
    end = lead + count;
    whole = end / kVec;
  }

  // Vector `v`, of which not all elements are the slice's; those that are not have no value.
  __device__ __forceinline__ Vec<T, kVec> load_part(int v) const {
    Vec<T, kVec> loaded{};
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const int at = v * kVec + i;
      if (at >= lead && at < end) loaded.value[i] = base[at];
    }
    return loaded;
  }
};

template <class Op>
__device__ __forceinline__ void absorb_part(
    typename Op::Running (&acc)[kVecOf<typename Op::Element>],
    const DenseSlice<typename Op::Element>& slice, int v, int position,
    const ReduceOptions& options) {
  using T = typename Op::Element;
  constexpr int kVec = kVecOf<T>;
  const Vec<T, kVec> loaded = slice.load_part(v);
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    const int at = v * kVec + i;
    if (at < slice.lead || at >= slice.end) continue;
    const Vec<T, 1> one{{loaded.value[i]}};
    absorb_vector<Op, 1>(acc[i], one, position, options);
  }
}

// A thread's vectors lane, lane + step, ... of the slice; positions are its vectors.
template <class Op>
__device__ __forceinline__ void reduce_dense(
    typename Op::Running (&acc)[kVecOf<typename Op::Element>],
    const DenseSlice<typename Op::Element>& slice, int lane, int step,
    const ReduceOptions& options) {
  using T = typename Op::Element;
  constexpr int kVec = kVecOf<T>;
  int v = lane, position = 0;
  if (v == 0 && slice.lead > 0) {
    absorb_part<Op>(acc, slice, v, position, options);
    v += step;
    ++position;
  }
  const T* from = slice.base + v * kVec;
#pragma unroll 1
  for (; v + (kReduceUnroll - 1) * step < slice.whole; v += kReduceUnroll * step) {
    Vec<T, kVec> loaded[kReduceUnroll];
#pragma unroll
    for (int u = 0; u < kReduceUnroll; ++u) {
      loaded[u] = load_vector<T, kVec>(from + u * step * kVec);
    }
    from += kReduceUnroll * step * kVec;
    absorb_rows<Op, kVec>(acc, loaded, position, 1, options);
    position += kReduceUnroll;
  }
  Vec<T, kVec> rest[kReduceUnroll - 1][1];
#pragma unroll
  for (int u = 0; u < kReduceUnroll - 1; ++u) {
    if (v + u * step < slice.whole) rest[u][0] = load_vector<T, kVec>(from + u * step * kVec);
  }
#pragma unroll
  for (int u = 0; u < kReduceUnroll - 1; ++u) {
    if (v < slice.whole) {
      absorb_rows<Op, kVec>(acc, rest[u], position, 0, options);
      v += step;
      ++position;
    }
  }
  if (v == slice.whole && v * kVec < slice.end) absorb_part<Op>(acc, slice, v, position, options);
}

inline constexpr int kMostFlatBytes = 32 << 10;  // of shared memory: blocks beside each other

// Where shared memory holds what every thread has found, a column's are combined from there at
// once.
template <class Op>
inline constexpr bool kFlatColumns =
    sizeof(typename Op::Running) * kMostDenseThreads * kVecOf<typename Op::Element> <=
    kMostFlatBytes;

// Elements of a thread lie `pitch` apart, so that neither threads that write nor those that read
// neighbouring columns meet in a bank.
template <class Op>
inline constexpr int kFlatPitch =
    kMostDenseThreads +
    128 / static_cast<int>(sizeof(typename Op::Running)) / kVecOf<typename Op::Element>;

template <class Op>
constexpr int dense_blocks() {
  constexpr size_t kBytes =
      kFlatColumns<Op> ? sizeof(typename Op::Running) : sizeof(typename Op::Acc);
  return kBytes * kVecOf<typename Op::Element> > 64 ? 1 : 2;
}

// A block takes a slice of a batch entry. The `active` threads that read are some periods (the
// vectors after which columns repeat). Their elements fold row by row of a period into one row of
// accumulators a period, which the threads of a column then add in order.
template <class Op>
__global__ void __launch_bounds__(kMostDenseThreads, dense_blocks<Op>())
    dense_columns_kernel(const __grid_constant__ ReduceArgs args) {
  using T = typename Op::Element;
  using Acc = typename Op::Acc;
  constexpr int kVec = kVecOf<T>;
  using Kept = std::conditional_t<kFlatColumns<Op>, typename Op::Running, Acc>;
  constexpr int kPitch = kFlatPitch<Op>;
  __shared__ Kept shared[kFlatColumns<Op> ? kPitch * kVec : kDenseSlots];
  wait_for_predecessor();
  const ReducePlan& plan = args.plan;
  const auto splits = static_cast<uint32_t>(plan.splits);
  const uint32_t batch = blockIdx.x / splits, part = blockIdx.x - batch * splits;
  const ReducePlace place = place_of(plan, batch);
  const int64_t begin = int64_t{part} * plan.chunk;
  const int rows = static_cast<int>(min(plan.chunk, plan.reduced - begin));
  const int cols = static_cast<int>(plan.cols), lane = static_cast<int>(threadIdx.x);
  const DenseSlice<T> slice(static_cast<const T*>(args.x) + place.in + begin * cols, rows * cols);

  typename Op::Running running[kVec];
#pragma unroll
  for (int i = 0; i < kVec; ++i) running[i] = Op::start(args.options);
  if (lane < plan.active) reduce_dense<Op>(running, slice, lane, plan.active, args.options);

  // Where the thread's first element lies: row `fold` of period `replica`, and its column
  const int per_row = min(cols & -cols, kVec);  // kVec is a power of two
  const int folds = kVec / per_row, replicas = plan.active / (cols / per_row);
  const int elements = plan.active * kVec, first = lane * kVec - slice.lead;
  const int at = first < 0 ? first + elements : first, rows_a_step = elements / cols;
  int row = at / cols, column = at - row * cols;
  int replica = row / folds, fold = row - replica * folds;
  if (first < 0) row -= rows_a_step;

  if constexpr (kFlatColumns<Op>) {
    if (lane < plan.active) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        if constexpr (Op::kIndexed) running[i] = Op::moved(running[i], row, rows_a_step);
        shared[i * kPitch + lane] = running[i];
        if (++column == cols) {
          column = 0;
          ++row;
        }
      }
    }
    __syncthreads();
    const int64_t base = place.index + begin * plan.index_step;
    const auto value = [&](int element) -> Acc {
      const int at = slice.lead + element, from = at < elements ? at : at - elements;
      return Op::settle(shared[from % kVec * kPitch + from / kVec], base, plan.index_step);
    };
    for (int c = lane; c < cols; c += static_cast<int>(blockDim.x)) {
      Acc sum = value(c);
      for (int other = c + cols; other < elements; other += cols) {
        Op::combine(sum, value(other), args.options);
      }
      emit<Op>(args, sum, place.slot + int64_t{part} * plan.outputs + c * plan.col_out);
    }
  } else {
    const int64_t step = plan.index_step * rows_a_step;
    int64_t index = place.index + (begin + row) * plan.index_step;
    Acc acc[kVec];
    int slot[kVec], turn[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      acc[i] = Op::settle(running[i], index, step);
      slot[i] = replica * cols + column;
      turn[i] = fold;
      if (++column == cols) {
        column = 0;
        index += plan.index_step;
        if (++fold == folds) {
          fold = 0;
          replica = replica + 1 == replicas ? 0 : replica + 1;
        }
      }
    }
    for (int now = 0; now < folds; ++now) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        if (turn[i] != now || lane >= plan.active) continue;
        if (now > 0) Op::combine(acc[i], shared[slot[i]], args.options);
        shared[slot[i]] = acc[i];
      }
      __syncthreads();
    }
    for (int c = lane; c < cols; c += static_cast<int>(blockDim.x)) {
      Acc sum = shared[c];
      for (int other = 1; other < replicas; ++other) {
        Op::combine(sum, shared[other * cols + c], args.options);
      }
      emit<Op>(args, sum, place.slot + int64_t{part} * plan.outputs + c * plan.col_out);
    }
  }
}

}  // namespace fusedops
