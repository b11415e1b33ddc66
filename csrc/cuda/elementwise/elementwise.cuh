// The elementwise engine: out[i] = op(in0[i], ..., i) with broadcasting and any strides, in
// accesses of 16 bytes wherever the memory allows one.
//
// Four kernels (on H200 more than a chunk per thread is slower where nothing is shared: 0.98 to
// 0.95 of the copy bandwidth instead of 1.01):
// - flat_kernel: every operand is contiguous and 16-byte aligned; 16 bytes per thread;
// - lines_kernel: out is contiguous and aligned, operands are so too or the same in every row. Rows
//   that do not begin at multiples of 16 bytes are taken several at a time, as lines that do;
// - single_kernel: rows of few chunks and few elements otherwise; an element at a time;
// - strided_kernel: everything else. It cuts out into chunks at out's own alignment; an input that
//   lies at another offset from 16 bytes is read as two aligned vectors that a funnel shift joins.
//   Only chunks at an end of a row or of the tensor are read element by element.
//
// An op is a functor: kInputs; kPerColumn, a bit for each input that is the same in every row;
// kLight, whether memory bounds it; operator()(const Vec (&in)[kInputs], ChunkAt) -> Vec for as
// many elements as there are; and resolve(use), which calls use(op) with an op that has no run-time
// choices left. Inputs and out may be the same memory.
#pragma once

#include <type_traits>

#include "csrc/cuda/elementwise/elementwise_lines.cuh"
#include "csrc/cuda/elementwise/elementwise_single.cuh"
#include "csrc/cuda/elementwise/elementwise_strided.cuh"

namespace fusedops {

// Rounds kN computed values; pairs share an instruction.
template <class T, class C, int kN>
__device__ __forceinline__ Vec<T, kN> rounded(const C (&values)[kN]) {
  Vec<T, kN> v;
  if constexpr (std::is_same_v<T, C>) {
#pragma unroll
    for (int i = 0; i < kN; ++i) v.value[i] = values[i];
  } else if constexpr (kN % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kN; i += 2) {
      if constexpr (std::is_same_v<T, __half>) {
        const __half2 pair = __floats2half2_rn(values[i], values[i + 1]);
        v.value[i] = pair.x, v.value[i + 1] = pair.y;
      } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(values[i], values[i + 1]);
        v.value[i] = pair.x, v.value[i + 1] = pair.y;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) v.value[i] = from_compute<T>(values[i]);
  }
  return v;
}

template <class T, int kInputs>
struct FlatOperands {
  const T* in[kInputs];
  T* out;
};

template <class T, class Op>
__global__ void __launch_bounds__(kElementwiseThreads)
    flat_kernel(const FlatOperands<T, Op::kInputs> p, int64_t count, const Op op) {
  using V = Vec<T, kChunk<T>>;
  wait_for_predecessor();
  const int64_t first =
      (int64_t{blockIdx.x} * kElementwiseThreads + threadIdx.x) * int64_t{kChunk<T>};
  V in[Op::kInputs];
  if (first + kChunk<T> <= count) {
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) {
      in[k] = load_input<Op>(reinterpret_cast<const V*>(p.in[k] + first));
    }
    *reinterpret_cast<V*>(p.out + first) = op(in, ChunkAt{first, true});
  } else if (first < count) {
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
#pragma unroll
      for (int k = 0; k < Op::kInputs; ++k) {
        in[k].value[i] = first + i < count ? p.in[k][first + i] : T(0);
      }
    }
    const V v = op(in, ChunkAt{first, true});
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      if (first + i < count) p.out[first + i] = v.value[i];
    }
  }
}

// ---- launch ----

// For ops whose operands have different shapes: without flat_kernel.
template <class T, class Op>
cudaError_t launch_rows(const ElementwiseProblem<Op::kInputs>& p, const Op& op, cudaStream_t stream,
                        bool overlap) {
  const auto launch = [&](auto kernel, int64_t threads, int block = kElementwiseThreads) {
    return launch_kernel(kernel, dim3(ceil_div(threads, int64_t{block})), dim3(block), 0, stream,
                         overlap, p, op);
  };
  if (p.single) {
    return launch(single_kernel<T, Op>, ceil_div(p.count, int64_t{kSingles}), kSingleThreads);
  }
  if (!p.lines) return launch(strided_kernel<T, Op>, ceil_div(p.count + p.head, kChunk<T>));
  return launch(lines_kernel<T, Op>,
                ceil_div(ceil_div(p.count, p.line), int64_t{kLines}) * p.chunks.divisor);
}

template <class T, class Op>
cudaError_t launch_elementwise(const ElementwiseProblem<Op::kInputs>& p, const Op& op,
                               cudaStream_t stream, bool overlap) {
  if (!p.flat) return launch_rows<T>(p, op, stream, overlap);
  FlatOperands<T, Op::kInputs> flat;
  for (int k = 0; k < Op::kInputs; ++k) flat.in[k] = static_cast<const T*>(p.in[k].data);
  flat.out = const_cast<T*>(static_cast<const T*>(p.out.data));
  const dim3 grid(ceil_div(p.count, int64_t{kElementwiseThreads} * kChunk<T>));
  return launch_kernel(flat_kernel<T, Op>, grid, dim3(kElementwiseThreads), 0, stream, overlap,
                       flat, p.count, op);
}

}  // namespace fusedops
