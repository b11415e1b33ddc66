#include "csrc/cutlass/kernels/unaligned/unaligned.cuh"
#include "csrc/cutlass/kernels/unaligned/unaligned.h"

namespace fusedops::unaligned {

const char* multiply_fp16(int tile, const GemmProblem& problem, const LaunchContext& context) {
  return launch_any<__half>(tile, problem, context);
}

}  // namespace fusedops::unaligned
