#include "csrc/cuda/fp8/fp8_rows_launch.cuh"

namespace fusedops {

cudaError_t launch_fp8_rows_fp32(const Fp8Quantize& p, const LaunchContext& context) {
  return launch_fp8_rows_of<float>(p, context);
}

}  // namespace fusedops
