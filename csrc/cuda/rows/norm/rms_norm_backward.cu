// The kernels of rms_norm's gradient.
#include "csrc/cuda/rows/norm/norm_backward_launch.cuh"

namespace fusedops::cuda {

void rms_norm_gradients(const NormGradients& t, const NormShape& shape, int64_t norm_dims,
                        const LaunchScope& scope) {
  norm_gradients<kRmsNorm>(t, shape, norm_dims, scope);
}

}  // namespace fusedops::cuda
