#include "csrc/cuda/fp8/fp8_hidden_launch.cuh"

namespace fusedops {

cudaError_t launch_fp8_hidden_bf16(const Fp8Hidden& p, const LaunchContext& context) {
  return launch_fp8_hidden_of<__nv_bfloat16>(p, context);
}

}  // namespace fusedops
