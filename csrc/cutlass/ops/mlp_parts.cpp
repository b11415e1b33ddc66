#include "csrc/cutlass/ops/mlp_parts.h"

namespace fusedops {

Tensor parameter_gradient(const Tensor& like, bool needed, std::initializer_list<int64_t> sizes,
                          bool fp32) {
  const ScalarType dtype = fp32 ? ScalarType::Float : like.scalar_type();
  return needed ? new_dense(like, sizes, dtype) : new_dense(like, {0}, dtype);
}

Tensor run_down(const GemmCall& like, const Tensor& h, const Tensor& weight,
                const std::optional<Tensor>& bias, const std::optional<Tensor>& residual,
                const Tensor& y, const LaunchScope& scope) {
  Tensor holder;
  const GemmCall call{.op = like.op,
                      .a = rows_view(h, holder),
                      .b = matrix_view(weight).transposed(),
                      .dtype = like.dtype,
                      .allow_tf32 = like.allow_tf32};
  if (residual) return run_linear_added(call, bias, *residual, y, scope);
  run_linear(call, bias, y, nullptr, scope);
  return y;
}

void run_gated_act(const char* op, const MlpShape& shape, const MatrixView& gate,
                   const MatrixView* up, const Tensor& h, const LaunchScope& scope) {
  if (shape.m == 0 || shape.hidden == 0) return;
  const auto row_stride = [](const MatrixView& view) {
    return view.rows == 1 ? view.cols : view.row_stride;
  };
  GatedAct p{.dtype = shape.dtype,
             .activation = shape.activation,
             .rows = shape.m,
             .cols = shape.hidden,
             .gate = gate.data,
             .gate_stride = row_stride(gate)};
  if (up) {
    p.up = up->data;
    p.up_stride = row_stride(*up);
  }
  p.h = h.mutable_data_ptr();
  const char* failure = gated_act(p, scope.context());
  FUSEDOPS_CHECK(failure == nullptr, op, ": the launch failed: ", failure);
}

}  // namespace fusedops
