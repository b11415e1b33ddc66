// The kernels of layer_norm's gradient.
#include "csrc/cuda/rows/norm/norm_backward_launch.cuh"

namespace fusedops::cuda {

void layer_norm_gradients(const NormGradients& t, const NormShape& shape, int64_t norm_dims,
                          const LaunchScope& scope) {
  norm_gradients<kLayerNorm>(t, shape, norm_dims, scope);
}

}  // namespace fusedops::cuda
