// Launches the passes of a planned reduction for one functor.
#pragma once

#include "csrc/common/device/element_types.cuh"
#include "csrc/cuda/reduce/reduce_columns.cuh"
#include "csrc/cuda/reduce/reduce_dense.cuh"
#include "csrc/cuda/reduce/reduce_launch.h"
#include "csrc/cuda/reduce/reduce_packed.cuh"
#include "csrc/cuda/reduce/reduce_rows.cuh"

namespace fusedops {

using ReduceKernelFn = void (*)(ReduceArgs);

template <class Op>
ReduceKernelFn packed_rows(const ReducePlan& plan) {
  constexpr int kSize = sizeof(typename Op::Element);
  if constexpr (kSize <= 2) {
    if (plan.reduced * kSize == 4) return packed_rows_kernel<Op, 4 / kSize>;
  }
  if constexpr (kSize <= 4) return packed_rows_kernel<Op, 8 / kSize>;
  return nullptr;
}

template <class Op>
ReduceKernelFn reduce_kernel(const ReducePlan& plan) {
  switch (plan.kernel) {
    case ReduceKernel::kShortRows:
      return plan.per_lane == 1   ? short_rows_kernel<Op, 1>
             : plan.per_lane == 2 ? short_rows_kernel<Op, 2>
                                  : short_rows_kernel<Op, kReduceUnroll>;
    case ReduceKernel::kPackedRows: return packed_rows<Op>(plan);
    case ReduceKernel::kStagedRows: return staged_rows_kernel<Op>;
    case ReduceKernel::kLongRows: return long_rows_kernel<Op, true>;
    case ReduceKernel::kStridedRows: return long_rows_kernel<Op, false>;
    case ReduceKernel::kFewRows: return few_rows_kernel<Op>;
    case ReduceKernel::kFewShiftedRows: return few_shifted_rows_kernel<Op>;
    case ReduceKernel::kShiftedColumns:
      return columns_kernel<Op, kVecOf<typename Op::Element>, true>;
    case ReduceKernel::kPackedColumns: return packed_columns_kernel<Op>;
    case ReduceKernel::kStagedColumns: return staged_columns_kernel<Op>;
    case ReduceKernel::kDenseColumns: return dense_columns_kernel<Op>;
    case ReduceKernel::kSingles: return singles_kernel<Op>;
    case ReduceKernel::kColumns: return columns_kernel<Op, kVecOf<typename Op::Element>>;
    default: return columns_kernel<Op, 1>;
  }
}

inline dim3 reduce_block(const ReducePlan& plan) {
  const bool long_rows =
      plan.kernel == ReduceKernel::kLongRows || plan.kernel == ReduceKernel::kStridedRows;
  if (long_rows) return dim3(plan.threads_x, plan.threads_y);
  return dim3(plan.threads_x * plan.threads_y * plan.threads_b);
}

// Threads of pass 2: along the outputs (x) as many as fill the GPU, the rest along the parts.
inline dim3 combine_block(const ReducePlan& plan, int sm_count) {
  unsigned x = 1, y = 1;
  while (x < 32 && int64_t{x} * sm_count < plan.outputs) x *= 2;
  while (x * y < kCombineThreads && int64_t{y} * 2 <= plan.parts) y *= 2;
  return dim3(x, y);
}

template <class Op, ReduceOp kOp, Element kElement>
const char* launch_passes(const ReduceArgs& args, const LaunchContext& context) {
  static_assert(sizeof(typename Op::Acc) == reduce_acc_bytes(kOp, kElement));
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const ReducePlan& plan = args.plan;
  cudaError_t status =
      launch_kernel(reduce_kernel<Op>(plan), dim3(static_cast<unsigned>(plan.blocks)),
                    reduce_block(plan), 0, stream, context.overlap, args);
  if (status == cudaSuccess && plan.parts > 1) {
    const dim3 block = combine_block(plan, context.sm_count);
    status = launch_kernel(combine_kernel<Op>,
                           dim3(static_cast<unsigned>(ceil_div(plan.outputs, block.x))), block, 0,
                           stream, context.overlap, args);
  }
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace fusedops
