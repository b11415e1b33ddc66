// rms_norm on CUDA.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cuda/rows/norm/norm_launch.cuh"

namespace fusedops::cuda {
namespace {

std::tuple<Tensor, Tensor, Tensor> rms_norm(const Tensor& x,  // (..., normalised dims)
                                            const std::optional<Tensor>& residual,  // like x
                                            const std::optional<Tensor>& weight,    // normalised
                                            int64_t norm_dims, double eps, bool fp32_out,
                                            bool need_statistics) {
  const std::optional<Tensor> no_bias;
  NormTensors t{x, residual, weight, no_bias};
  norm<kRmsNorm>("rms_norm", t, norm_dims, eps, fp32_out, need_statistics);
  return {t.y, t.sum, t.rstd};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) { m.impl("rms_norm", FUSEDOPS_BOX(&rms_norm)); }

}  // namespace fusedops::cuda
