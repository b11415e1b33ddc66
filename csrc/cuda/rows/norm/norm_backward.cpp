// The gradients of layer_norm and rms_norm on CUDA: the ops.
#include "csrc/cuda/rows/norm/norm_backward.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <tuple>

#include "csrc/common/checks/op_boundary.h"

namespace fusedops::cuda {
namespace {

struct NormArguments {
  const Tensor& dy;
  const std::optional<Tensor>& dresidual;
  const Tensor& x;
  const std::optional<Tensor>& weight;
  const std::optional<Tensor>& mean;
  const Tensor& rstd;
};

using Launch = void (*)(const NormGradients&, const NormShape&, int64_t, const LaunchScope&);

std::tuple<Tensor, Tensor, Tensor> norm_backward(const char* op, const NormArguments& a,
                                                 int64_t norm_dims, bool need_dx, bool need_dweight,
                                                 bool need_dbias, Launch launch) {
  // Guard
  const LaunchScope scope(op, a.dy);

  // Contract and checks
  const NormShape shape =
      check_norm_backward(op, a.dy, a.dresidual, a.x, a.weight, a.mean, a.rstd, norm_dims);
  const std::optional<Tensor> weight = dense(a.weight), mean = dense(a.mean);
  const Tensor rstd = dense(a.rstd);

  // Allocate
  const auto sizes = a.x.sizes();
  const Sizes normalised(sizes.data() + a.x.dim() - norm_dims, norm_dims);
  const auto output = [&](bool needed, const auto& shape_of_it, ScalarType dtype) {
    return needed ? new_dense(a.x, shape_of_it, dtype) : new_dense(a.x, {0}, dtype);
  };
  const ScalarType parameter = weight ? weight->scalar_type() : a.x.scalar_type();
  Tensor dx = output(need_dx, sizes, a.x.scalar_type());
  Tensor dweight = output(need_dweight, normalised, parameter);
  Tensor dbias = output(need_dbias, normalised, parameter);

  // Empty early return
  if (a.x.numel() == 0 || !(need_dx || need_dweight || need_dbias)) {
    torch::stable::zero_(dweight);
    torch::stable::zero_(dbias);
    return {dx, dweight, dbias};
  }

  // Config, launch
  const NormGradients tensors{a.dy,
                              a.dresidual,
                              a.x,
                              weight,
                              mean ? &*mean : nullptr,
                              rstd,
                              need_dx ? &dx : nullptr,
                              need_dweight ? &dweight : nullptr,
                              need_dbias ? &dbias : nullptr};
  launch(tensors, shape, norm_dims, scope);

  // Launch check
  check_launch(op);
  return {dx, dweight, dbias};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(
    const Tensor& dy,                        // like x
    const std::optional<Tensor>& dresidual,  // like x
    const Tensor& x,                         // (..., normalised dims)
    const std::optional<Tensor>& weight,     // the normalised dims
    const Tensor& mean, const Tensor& rstd,  // (rows,)
    int64_t norm_dims, bool need_dx, bool need_dweight, bool need_dbias) {
  return norm_backward("layer_norm_backward", {dy, dresidual, x, weight, mean, rstd}, norm_dims,
                       need_dx, need_dweight, need_dbias, layer_norm_gradients);
}

std::tuple<Tensor, Tensor> rms_norm_backward(
    const Tensor& dy,                        // like x
    const std::optional<Tensor>& dresidual,  // like x
    const Tensor& x,                         // (..., normalised dims)
    const std::optional<Tensor>& weight,     // the normalised dims
    const Tensor& rstd,                      // (rows,)
    int64_t norm_dims, bool need_dx, bool need_dweight) {
  const std::optional<Tensor> no_mean;
  const auto [dx, dweight, dbias] =
      norm_backward("rms_norm_backward", {dy, dresidual, x, weight, no_mean, rstd}, norm_dims,
                    need_dx, need_dweight, false, rms_norm_gradients);
  return {dx, dweight};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("layer_norm_backward", FUSEDOPS_BOX(&layer_norm_backward));
  m.impl("rms_norm_backward", FUSEDOPS_BOX(&rms_norm_backward));
}

}  // namespace fusedops::cuda
