// Sums, sums of absolute values, sums of squares.
#include "csrc/cuda/reduce/reduce_launch.cuh"

namespace fusedops {

const char* launch_reduce_sum(ReduceOp op, Element element, const ReduceArgs& args,
                              const LaunchContext& context) {
  if (op == ReduceOp::kSumSquares) {
    return dispatch(FloatingElements{}, element, [&]<Element E>(Tag<E>) {
      return launch_passes<ReduceSum<ElementType<E>, true>, ReduceOp::kSumSquares, E>(args,
                                                                                      context);
    });
  }
  return dispatch(NumberElements{}, element, [&]<Element E>(Tag<E>) {
    return launch_passes<ReduceSum<ElementType<E>, false>, ReduceOp::kSum, E>(args, context);
  });
}

}  // namespace fusedops
