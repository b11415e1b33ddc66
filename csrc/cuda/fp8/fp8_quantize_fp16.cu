#include "csrc/cuda/fp8/fp8_quantize_launch.cuh"

namespace fusedops {

cudaError_t launch_fp8_quantize_fp16(const Fp8Quantize& p, bool maxima_only,
                                     const LaunchContext& context) {
  return launch_fp8_quantize_of<__half>(p, maxima_only, context);
}

}  // namespace fusedops
