// The elementwise kernel for few elements and for rows of few chunks, with operands of any strides
// and alignment (see elementwise.cuh).
#pragma once

#include "csrc/common/device/pdl.cuh"
#include "csrc/cuda/elementwise/elementwise_problem.cuh"

namespace fusedops {

inline constexpr int kSingleThreads = 128;
inline constexpr int kSingles = 4;  // elements of a thread, a block's width apart

// Offsets of element e in every operand, the last of which is out.
template <int kInputs>
__device__ __forceinline__ void single_offsets(const ElementwiseProblem<kInputs>& p, uint32_t e,
                                               int64_t (&offset)[kInputs + 1]) {
  uint32_t left = p.single_cols.divide(e);
  const uint32_t col = e - left * p.single_cols.divisor;
#pragma unroll
  for (int k = 0; k < kInputs; ++k) offset[k] = col * p.in[k].inner;
  offset[kInputs] = col * p.out.inner;
  for (int d = p.outer - 1; d >= 0; --d) {
    const uint32_t above = d > 0 ? p.single_sizes[d].divide(left) : 0;
    const uint32_t at = left - above * p.single_sizes[d].divisor;
#pragma unroll
    for (int k = 0; k < kInputs; ++k) offset[k] += at * p.in[k].strides[d];
    offset[kInputs] += at * p.out.strides[d];
    left = above;
  }
}

// Neighbouring lanes take neighbouring elements of out, whatever row they lie in; all loads of a
// thread are on their way together.
template <class T, class Op>
__global__ void __launch_bounds__(kSingleThreads)
    single_kernel(const __grid_constant__ ElementwiseProblem<Op::kInputs> p, const Op op) {
  wait_for_predecessor();
  const uint32_t first = blockIdx.x * (kSingleThreads * kSingles) + threadIdx.x;
  const auto count = static_cast<uint32_t>(p.count);
  Vec<T, 1> in[kSingles][Op::kInputs];
  int64_t to[kSingles];
#pragma unroll
  for (int i = 0; i < kSingles; ++i) {
    const uint32_t e = first + i * kSingleThreads;
    if (e >= count) continue;
    int64_t offset[Op::kInputs + 1];
    single_offsets(p, e, offset);
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) {
      in[i][k].value[0] = p.in[k].access == Access::kConstant
                              ? static_cast<T>(p.in[k].constant)
                              : static_cast<const T*>(p.in[k].data)[offset[k]];
    }
    to[i] = offset[Op::kInputs];
  }
  T* const out = const_cast<T*>(static_cast<const T*>(p.out.data));
  op.resolve([&](const auto& resolved) {
#pragma unroll
    for (int i = 0; i < kSingles; ++i) {
      const uint32_t e = first + i * kSingleThreads;
      if (e < count) out[to[i]] = resolved(in[i], ChunkAt{e, false}).value[0];
    }
  });
}

}  // namespace fusedops
