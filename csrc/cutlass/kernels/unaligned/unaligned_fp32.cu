#include "csrc/cutlass/kernels/unaligned/unaligned.h"
#include "csrc/cutlass/kernels/unaligned/unaligned_fp32.cuh"

namespace fusedops::unaligned {

const char* multiply_fp32(int tile, const GemmProblem& problem, const LaunchContext& context) {
  static_assert(kNumPartTiles == 2);
  return tile == 0 ? launch_layout<Words<0>::template G>(problem, context)
                   : launch_layout<Words<1>::template G>(problem, context);
}

}  // namespace fusedops::unaligned
