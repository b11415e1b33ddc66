// bias_dropout_residual, its out variant and its backward on CUDA.
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/cuda/elementwise/column_pass_host.h"
#include "csrc/cuda/elementwise/dropout.cuh"
#include "csrc/cuda/elementwise/elementwise_host.h"

namespace fusedops::cuda {
namespace {

Dropout dropout_of(const std::optional<Tensor>& seed, double p) {
  return {p > 0 ? static_cast<const int64_t*>(seed->const_data_ptr()) : nullptr, DropoutRule(p)};
}

void launch(const char* op, const LaunchScope& scope, const Tensor& out,
            const NamedTensor (&inputs)[3], DType dtype, const Dropout& dropout) {
  // Empty early return
  if (out.numel() == 0) return;

  // Config
  const auto problem = problem_of<3>(op, out, inputs, {0, -0.0, -0.0}, /*keep_order=*/true,
                                     BiasDropoutResidual<float>::kPerColumn);

  // Launch
  const bool overlap = scope.facts().code_version >= 90;
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    launch_rows<T>(problem, BiasDropoutResidual<T>{dropout}, scope.stream(), overlap);
  });

  // Launch check
  check_launch(op);
}

Tensor bias_dropout_residual(const Tensor& x,                        // (..., N)
                             const std::optional<Tensor>& bias,      // (N,)
                             const std::optional<Tensor>& residual,  // (..., N)
                             const std::optional<Tensor>& seed,      // (1,) int64
                             double p) {
  constexpr const char* kOp = "bias_dropout_residual";
  // Guard
  const LaunchScope scope(kOp, x);

  // Checks
  const DType dtype = check_bias_dropout_residual(kOp, x, bias, residual, seed, p);

  // Allocate
  const Tensor out = new_dense(x, x.sizes());
  launch(kOp, scope, out, {{"x", &x}, named("bias", bias), named("residual", residual)}, dtype,
         dropout_of(seed, p));
  return out;
}

void bias_dropout_residual_out(const Tensor& x,                        // (..., N)
                               const std::optional<Tensor>& bias,      // (N,)
                               const std::optional<Tensor>& residual,  // (..., N)
                               const std::optional<Tensor>& seed,      // (1,) int64
                               double p,
                               const Tensor& out) {  // (..., N)
  constexpr const char* kOp = "bias_dropout_residual";
  // Guard
  const LaunchScope scope(kOp, x);

  // Checks
  const NamedTensor inputs[] = {{"x", &x}, named("bias", bias), named("residual", residual)};
  const DType dtype = check_bias_dropout_residual(kOp, x, bias, residual, seed, p);
  check_out(kOp, out, shape_of(x), inputs);
  launch(kOp, scope, out, inputs, dtype, dropout_of(seed, p));
}

std::tuple<Tensor, Tensor> bias_dropout_residual_backward(
    const Tensor& dy,                   // (..., N)
    const std::optional<Tensor>& seed,  // (1,) int64
    double p, bool need_dx, bool need_dbias) {
  constexpr const char* kOp = "bias_dropout_residual_backward";
  // Guard
  const LaunchScope scope(kOp, dy);

  // Checks
  const DType dtype = check_bias_dropout_residual_backward(kOp, dy, seed, p);

  // Allocate
  const int64_t n = dy.size(dy.dim() - 1);
  const Tensor dx = new_dense(dy, need_dx ? shape_of(dy) : std::vector<int64_t>{0});
  Tensor dbias = new_dense(dy, {need_dbias ? n : 0});

  // Empty early return
  if (dy.numel() == 0) {
    torch::stable::zero_(dbias);
    return {dx, dbias};
  }
  if (!need_dbias) {
    if (need_dx) {
      launch(kOp, scope, dx, {{"dy", &dy}, {"bias", nullptr}, {"residual", nullptr}}, dtype,
             dropout_of(seed, p));
    }
    return {dx, dbias};
  }

  // Config
  const RowMatrix dy_rows(dy);
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    ColumnPass<1, 1> pass;
    pass.rows = dy.numel() / n;
    pass.cols = n;
    pass.in[0] = dy_rows.data(), pass.strides[0] = dy_rows.stride;
    pass.out = need_dx ? dx.mutable_data_ptr() : nullptr;
    set_grid<T>(pass, scope);
    const Tensor partial = partial_of<T>(pass, dy, true);
    pass.partial[0] = partial.mutable_data_ptr();

    // Launch
    launch_column_pass<T>(pass, DropoutBackward<T>{dropout_of(seed, p), pass.cols},
                          {dbias.mutable_data_ptr()}, scope.stream(),
                          scope.facts().code_version >= 90);
  });

  // Launch check
  check_launch(kOp);
  return {dx, dbias};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("bias_dropout_residual", FUSEDOPS_BOX(&bias_dropout_residual));
  m.impl("bias_dropout_residual_out", FUSEDOPS_BOX(&bias_dropout_residual_out));
  m.impl("bias_dropout_residual_backward", FUSEDOPS_BOX(&bias_dropout_residual_backward));
}

}  // namespace fusedops::cuda
