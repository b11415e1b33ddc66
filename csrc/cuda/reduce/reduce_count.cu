// How many elements are not zero: by size, whatever their type.
#include "csrc/cuda/reduce/reduce_launch.cuh"

namespace fusedops {

using CountedElements = Choices<Element::kUInt8, Element::kInt16, Element::kInt32, Element::kInt64>;

const char* launch_reduce_count(ReduceOp, Element element, const ReduceArgs& args,
                                const LaunchContext& context) {
  return dispatch(CountedElements{}, element, [&]<Element E>(Tag<E>) {
    return launch_passes<ReduceCount<ElementType<E>>, ReduceOp::kCount, E>(args, context);
  });
}

}  // namespace fusedops
