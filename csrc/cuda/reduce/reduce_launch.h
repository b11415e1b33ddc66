// Host face of the reduction kernels: one function per group of functors, each in a .cu of its own.
#pragma once

#include "csrc/common/launch_context.h"
#include "csrc/common/reduction.h"
#include "csrc/cuda/reduce/reduce_args.h"

namespace fusedops {

// The accumulators that exist (reduce_ops.cuh).
enum class ReduceOp : int8_t {
  kSum,
  kSumSquares,
  kProd,
  kExtremum,
  kExtremumCount,
  kArg,
  kCount,
  kMoments,
  kLogsumexp,
};

// Bytes of one accumulator, for the workspace.
constexpr int reduce_acc_bytes(ReduceOp op, Element element) {
  const int key = element_bytes(element) == 8 ? 8 : 4;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProd: return is_floating(element) ? key : 8;
    case ReduceOp::kCount: return 8;
    case ReduceOp::kArg: return 16;
    case ReduceOp::kMoments: return 3 * key;
    case ReduceOp::kExtremumCount:
    case ReduceOp::kLogsumexp: return 2 * key;
    default: return key;
  }
}

// Each launches; returns null or the reason of the failure.
const char* launch_reduce_sum(ReduceOp op, Element element, const ReduceArgs& args,
                              const LaunchContext& context);
const char* launch_reduce_prod(ReduceOp op, Element element, const ReduceArgs& args,
                               const LaunchContext& context);
const char* launch_reduce_extremum(ReduceOp op, Element element, const ReduceArgs& args,
                                   const LaunchContext& context);
const char* launch_reduce_arg(ReduceOp op, Element element, const ReduceArgs& args,
                              const LaunchContext& context);
const char* launch_reduce_count(ReduceOp op, Element element, const ReduceArgs& args,
                                const LaunchContext& context);
const char* launch_reduce_moments(ReduceOp op, Element element, const ReduceArgs& args,
                                  const LaunchContext& context);

inline const char* launch_reduce(ReduceOp op, Element element, const ReduceArgs& args,
                                 const LaunchContext& context) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kSumSquares: return launch_reduce_sum(op, element, args, context);
    case ReduceOp::kProd: return launch_reduce_prod(op, element, args, context);
    case ReduceOp::kExtremum:
    case ReduceOp::kExtremumCount: return launch_reduce_extremum(op, element, args, context);
    case ReduceOp::kArg: return launch_reduce_arg(op, element, args, context);
    case ReduceOp::kCount: return launch_reduce_count(op, element, args, context);
    default: return launch_reduce_moments(op, element, args, context);
  }
}

}  // namespace fusedops
