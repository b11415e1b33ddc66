#include "csrc/cuda/fp8/fp8_rows_launch.cuh"

namespace fusedops {

cudaError_t launch_fp8_rows_bf16(const Fp8Quantize& p, const LaunchContext& context) {
  return launch_fp8_rows_of<__nv_bfloat16>(p, context);
}

}  // namespace fusedops
