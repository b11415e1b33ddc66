// layer_norm on CUDA.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cuda/rows/norm/norm_launch.cuh"

namespace fusedops::cuda {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> layer_norm(
    const Tensor& x,                        // (..., normalised dims)
    const std::optional<Tensor>& residual,  // like x
    const std::optional<Tensor>& weight,    // the normalised dims
    const std::optional<Tensor>& bias,      // the normalised dims
    int64_t norm_dims, double eps, bool fp32_out, bool need_statistics) {
  NormTensors t{x, residual, weight, bias};
  norm<kLayerNorm>("layer_norm", t, norm_dims, eps, fp32_out, need_statistics);
  return {t.y, t.sum, t.mean, t.rstd};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) { m.impl("layer_norm", FUSEDOPS_BOX(&layer_norm)); }

}  // namespace fusedops::cuda
