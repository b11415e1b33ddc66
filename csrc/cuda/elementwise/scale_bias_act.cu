// scale_bias_act, its out variant and its backward on CUDA.
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/cuda/elementwise/column_pass_host.h"
#include "csrc/cuda/elementwise/elementwise_host.h"
#include "csrc/cuda/elementwise/scale_bias_act.cuh"

namespace fusedops::cuda {
namespace {

void launch(const LaunchScope& scope, const Tensor& out, const NamedTensor (&inputs)[3],
            DType dtype, Activation activation) {
  // Empty early return
  if (out.numel() == 0) return;

  // Config
  const auto problem = problem_of<3>("scale_bias_act", out, inputs, {0, 1, -0.0},
                                     /*keep_order=*/false, ScaleBiasAct<float>::kPerColumn);

  // Launch
  const bool overlap = scope.facts().code_version >= 90;
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    launch_rows<T>(problem, ScaleBiasAct<T>{activation}, scope.stream(), overlap);
  });

  // Launch check
  check_launch("scale_bias_act");
}

Tensor scale_bias_act(const Tensor& x,                     // (..., N)
                      const std::optional<Tensor>& scale,  // (N,)
                      const std::optional<Tensor>& bias,   // (N,)
                      int64_t activation) {
  // Guard
  const LaunchScope scope("scale_bias_act", x);

  // Checks
  const DType dtype = check_scale_bias_act("scale_bias_act", x, scale, bias, activation);

  // Allocate
  const NamedTensor like[] = {{"x", &x}};
  const Tensor out = new_result(shape_of(x), like);
  launch(scope, out, {{"x", &x}, named("scale", scale), named("bias", bias)}, dtype,
         static_cast<Activation>(activation));
  return out;
}

void scale_bias_act_out(const Tensor& x,                     // (..., N)
                        const std::optional<Tensor>& scale,  // (N,)
                        const std::optional<Tensor>& bias,   // (N,)
                        int64_t activation,
                        const Tensor& out) {  // (..., N)
  // Guard
  const LaunchScope scope("scale_bias_act", x);

  // Checks
  const NamedTensor inputs[] = {{"x", &x}, named("scale", scale), named("bias", bias)};
  const DType dtype = check_scale_bias_act("scale_bias_act", x, scale, bias, activation);
  check_out("scale_bias_act", out, shape_of(x), inputs);
  launch(scope, out, inputs, dtype, static_cast<Activation>(activation));
}

std::tuple<Tensor, Tensor, Tensor> scale_bias_act_backward(
    const Tensor& dy,                    // (..., N)
    const Tensor& x,                     // (..., N)
    const std::optional<Tensor>& scale,  // (N,)
    const std::optional<Tensor>& bias,   // (N,)
    int64_t activation, bool need_dx, bool need_dscale, bool need_dbias) {
  constexpr const char* kOp = "scale_bias_act_backward";
  // Guard
  const LaunchScope scope(kOp, dy);

  // Checks
  const DType dtype = check_scale_bias_act_backward(kOp, dy, x, scale, bias, activation);

  // Allocate
  const int64_t n = dy.size(dy.dim() - 1);
  const Tensor dx = new_dense(dy, need_dx ? shape_of(dy) : std::vector<int64_t>{0});
  Tensor dscale = new_dense(dy, {need_dscale ? n : 0});
  Tensor dbias = new_dense(dy, {need_dbias ? n : 0});

  // Empty early return
  if (dy.numel() == 0) {
    torch::stable::zero_(dscale);
    torch::stable::zero_(dbias);
    return {dx, dscale, dbias};
  }
  if (!need_dx && !need_dscale && !need_dbias) return {dx, dscale, dbias};

  // Config
  const RowMatrix dy_rows(dy), x_rows(x);
  const std::optional<Tensor> dense_scale = dense(scale), dense_bias = dense(bias);
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    ColumnPass<2, 2> pass;
    pass.rows = dy.numel() / n;
    pass.cols = n;
    pass.in[0] = dy_rows.data(), pass.strides[0] = dy_rows.stride;
    pass.in[1] = x_rows.data(), pass.strides[1] = x_rows.stride;
    pass.out = need_dx ? dx.mutable_data_ptr() : nullptr;
    set_grid<T>(pass, scope);
    const Tensor partials[] = {partial_of<T>(pass, dy, need_dscale),
                               partial_of<T>(pass, dy, need_dbias)};
    for (int s = 0; s < 2; ++s) pass.partial[s] = pointer_or_null(partials[s]);

    // Launch
    const ScaleBiasActBackward<T> op{
        static_cast<const T*>(dense_scale ? dense_scale->const_data_ptr() : nullptr),
        static_cast<const T*>(dense_bias ? dense_bias->const_data_ptr() : nullptr),
        static_cast<Activation>(activation)};
    launch_column_pass<T>(pass, op, {pointer_or_null(dscale), pointer_or_null(dbias)},
                          scope.stream(), scope.facts().code_version >= 90);
  });

  // Launch check
  check_launch(kOp);
  return {dx, dscale, dbias};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("scale_bias_act", FUSEDOPS_BOX(&scale_bias_act));
  m.impl("scale_bias_act_out", FUSEDOPS_BOX(&scale_bias_act_out));
  m.impl("scale_bias_act_backward", FUSEDOPS_BOX(&scale_bias_act_backward));
}

}  // namespace fusedops::cuda
