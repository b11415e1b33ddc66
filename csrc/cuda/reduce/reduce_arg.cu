// Indices of the first largest elements.
#include "csrc/cuda/reduce/reduce_launch.cuh"

namespace fusedops {

const char* launch_reduce_arg(ReduceOp, Element element, const ReduceArgs& args,
                              const LaunchContext& context) {
  return dispatch(NumberElements{}, element, [&]<Element E>(Tag<E>) {
    return launch_passes<ReduceArg<ElementType<E>>, ReduceOp::kArg, E>(args, context);
  });
}

}  // namespace fusedops
