#include "csrc/cuda/fp8/fp8_hidden_launch.cuh"

namespace fusedops {

cudaError_t launch_fp8_hidden_fp16(const Fp8Hidden& p, const LaunchContext& context) {
  return launch_fp8_hidden_of<__half>(p, context);
}

}  // namespace fusedops
