// Variance with mean, and log-sum-exp.
#include "csrc/cuda/reduce/reduce_launch.cuh"

namespace fusedops {

const char* launch_reduce_moments(ReduceOp op, Element element, const ReduceArgs& args,
                                  const LaunchContext& context) {
  return dispatch(FloatingElements{}, element, [&]<Element E>(Tag<E>) {
    using T = ElementType<E>;
    if (op == ReduceOp::kMoments) {
      return launch_passes<ReduceMoments<T>, ReduceOp::kMoments, E>(args, context);
    }
    return launch_passes<ReduceLogsumexp<T>, ReduceOp::kLogsumexp, E>(args, context);
  });
}

}  // namespace fusedops
