#include "csrc/cuda/fp8/fp8_rows_launch.cuh"

namespace fusedops {

cudaError_t launch_fp8_rows_fp16(const Fp8Quantize& p, const LaunchContext& context) {
  return launch_fp8_rows_of<__half>(p, context);
}

}  // namespace fusedops
