// Products.
#include "csrc/cuda/reduce/reduce_launch.cuh"

namespace fusedops {

const char* launch_reduce_prod(ReduceOp, Element element, const ReduceArgs& args,
                               const LaunchContext& context) {
  return dispatch(NumberElements{}, element, [&]<Element E>(Tag<E>) {
    return launch_passes<ReduceProd<ElementType<E>>, ReduceOp::kProd, E>(args, context);
  });
}

}  // namespace fusedops
