// Largest elements, with and without the count of those that equal it.
#include "csrc/cuda/reduce/reduce_launch.cuh"

namespace fusedops {

const char* launch_reduce_extremum(ReduceOp op, Element element, const ReduceArgs& args,
                                   const LaunchContext& context) {
  if (op == ReduceOp::kExtremumCount) {
    return dispatch(FloatingElements{}, element, [&]<Element E>(Tag<E>) {
      return launch_passes<ReduceExtremum<ElementType<E>, true>, ReduceOp::kExtremumCount, E>(
          args, context);
    });
  }
  return dispatch(NumberElements{}, element, [&]<Element E>(Tag<E>) {
    return launch_passes<ReduceExtremum<ElementType<E>, false>, ReduceOp::kExtremum, E>(args,
                                                                                        context);
  });
}

}  // namespace fusedops
