// Pass 1 along a kept dimension whose rows are not aligned: vectors of 16 bytes put together from
// two aligned ones. DRAM is read once; the second load finds its bytes in L1.
#pragma once

#include "csrc/common/device/pdl.cuh"
#include "csrc/cuda/reduce/reduce_device.cuh"

namespace fusedops {

// Blocks to an SM that leave a thread of such a kernel the registers for its accumulators.
template <class Op>
constexpr int shifted_blocks() {
  constexpr int kBytes = sizeof(typename Op::Acc) * kVecOf<typename Op::Element>;
  if (kBytes > 128) return 1;
  return kBytes > 64 || sizeof(typename Op::Element) == 8 ? 2 : 3;
}

__device__ __forceinline__ unsigned misalignment(const void* p) {
  return static_cast<unsigned>(reinterpret_cast<uintptr_t>(p) % 16);
}

// The aligned vectors around 16 bytes at an address of any alignment, both readable.
struct ShiftedWords {
  uint4 low, high;
  unsigned shift;
};
template <class T>
__device__ __forceinline__ ShiftedWords load_words(const T* p) {
  const unsigned shift = misalignment(p);
  const auto* from =
      reinterpret_cast<const uint4*>(reinterpret_cast<const unsigned char*>(p) - shift);
  const uint4 low = from[0];
  uint4 high = low;
  if (shift > 0) high = from[1];
  return {low, high, shift};
}

// The 16 bytes. NOTE: apart from the loads, so that guards do not make each wait for the one
// before.
template <class T>
__device__ __forceinline__ Vec<T, kVecOf<T>> shifted(const ShiftedWords& loaded) {
  const auto& [low, high, shift] = loaded;
  unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  if (shift & 8) {
#pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = words[i + 2];
  }
  if (shift & 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = words[i + 1];
  }
  union {
    unsigned words[4];
    Vec<T, kVecOf<T>> vector;
  } result;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    result.words[i] = __funnelshift_r(words[i], words[i + 1], shift % 4 * 8);
  }
  return result.vector;
}
template <class T>
__device__ __forceinline__ Vec<T, kVecOf<T>> load_shifted(const T* p) {
  return shifted<T>(load_words(p));
}

// Whether load_shifted may read 16 bytes at `p` of a tensor: it never leaves the tensor.
template <class T>
__device__ __forceinline__ bool shifted_readable(const T* p, const ReduceArgs& args) {
  const unsigned shift = misalignment(p);
  const auto* from = reinterpret_cast<const unsigned char*>(p) - shift;
  const auto* begin = static_cast<const unsigned char*>(args.x);
  const auto* end = begin + args.plan.span * static_cast<int64_t>(sizeof(T));
  return from >= begin && from + (shift > 0 ? 32 : 16) <= end;
}

// A thread's rows first, first + step, ... of `rows`, `stride` elements apart, by vectors. `x` is
// row 0, at the thread's columns.
template <class Op, int kVec>
__device__ __forceinline__ void reduce_shifted(typename Op::Running (&acc)[kVec],
                                               const typename Op::Element* x, int first, int step,
                                               int rows, int64_t stride, const ReduceArgs& args) {
  using T = typename Op::Element;
  int row = first;
#pragma unroll 1
  for (; row + (kReduceUnroll - 1) * step < rows; row += kReduceUnroll * step) {
    Vec<T, kVec> loaded[kReduceUnroll];
#pragma unroll
    for (int u = 0; u < kReduceUnroll; ++u) loaded[u] = load_shifted(x + (row + u * step) * stride);
    absorb_rows<Op, kVec>(acc, loaded, row, step, args.options);
  }
  ShiftedWords rest[kReduceUnroll - 1];
#pragma unroll
  for (int u = 0; u < kReduceUnroll - 1; ++u) {
    if (row + u * step < rows) rest[u] = load_words(x + (row + u * step) * stride);
  }
#pragma unroll
  for (int u = 0; u < kReduceUnroll - 1; ++u) {
    if (row + u * step < rows) {
      Vec<T, kVec> loaded[1] = {shifted<T>(rest[u])};
      absorb_rows<Op, kVec>(acc, loaded, row + u * step, 0, args.options);
    }
  }
}

// The same element by element.
template <class Op, int kVec>
__device__ __forceinline__ void reduce_elements(typename Op::Running (&acc)[kVec],
                                                const typename Op::Element* x, int first, int step,
                                                int rows, int64_t stride, const ReduceArgs& args) {
  using T = typename Op::Element;
#pragma unroll 1
  for (int row = first; row < rows; row += step) {
    Vec<T, kVec> loaded[1];
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      loaded[0].value[i] = load_vector<T, 1>(x + row * stride + i).value[0];
    }
    absorb_rows<Op, kVec>(acc, loaded, row, 0, args.options);
  }
}

// The same by vectors, but for the first and the last row where those are at the tensor's ends.
template <class Op, int kVec>
__device__ __forceinline__ void reduce_readable(typename Op::Running (&acc)[kVec],
                                                const typename Op::Element* x, int first, int step,
                                                int rows, int64_t stride, const ReduceArgs& args) {
  int low = shifted_readable(x, args) ? 0 : 1;
  int high = max(low, shifted_readable(x + (rows - 1) * stride, args) ? rows : rows - 1);
  if (low < high && !(shifted_readable(x + low * stride, args) &&
                      shifted_readable(x + (high - 1) * stride, args))) {
    low = high = rows;
  }
  int row = first;
  const auto advance = [&](int to) {
    if (row < to) row += (to - row + step - 1) / step * step;
  };
  reduce_elements<Op, kVec>(acc, x, row, step, low, stride, args);
  advance(low);
  reduce_shifted<Op, kVec>(acc, x, row, step, high, stride, args);
  advance(high);
  reduce_elements<Op, kVec>(acc, x, row, step, rows, stride, args);
}

// Few rows of many columns: one thread holds all rows of its columns, which begin where a vector of
// outputs does.
// NOTE: at either end of a row a thread reads the vector that lies in it, of which some columns are
// another thread's: one that went element by element would be the last.
template <class Op>
__global__ void __launch_bounds__(kReduceThreads, shifted_blocks<Op>())
    few_shifted_rows_kernel(const __grid_constant__ ReduceArgs args) {
  using T = typename Op::Element;
  constexpr int kVec = kVecOf<T>;
  wait_for_predecessor();
  const ReducePlan& plan = args.plan;
  const auto width_blocks =
      static_cast<uint32_t>(ceil_div(plan.cols + kVec - 1, int64_t{plan.threads_x} * kVec));
  const uint32_t batch = blockIdx.x / width_blocks, x = blockIdx.x - batch * width_blocks;
  const ReducePlace place = place_of(plan, batch);
  const int64_t lead = place.slot % kVec;
  const int64_t column = (int64_t{x} * plan.threads_x + threadIdx.x) * kVec - lead;
  if (column >= plan.cols) return;
  const int64_t inside = max(int64_t{0}, min(column, plan.cols - kVec));
  const T* from = static_cast<const T*>(args.x) + place.in + inside;

  typename Op::Running running[kVec];
#pragma unroll
  for (int i = 0; i < kVec; ++i) running[i] = Op::start(args.options);
  reduce_readable<Op, kVec>(running, from, 0, 1, static_cast<int>(plan.reduced),
                            plan.reduced_stride, args);
  typename Op::Acc acc[kVec];
#pragma unroll
  for (int i = 0; i < kVec; ++i) acc[i] = Op::settle(running[i], place.index, plan.index_step);
  if (inside == column) {
    finish_outputs<Op>(args, acc, place.slot + column);
    return;
  }
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    const int64_t own = inside + i - column;
    if (own >= 0 && own < kVec) emit<Op>(args, acc[i], place.slot + inside + i);
  }
}

}  // namespace fusedops
