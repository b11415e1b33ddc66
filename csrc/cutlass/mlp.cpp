// mlp on CUDA: both products of y = act(x @ w1.T + b1) @ w2.T + b2 + residual, and the backward of
// the second product with the activation. Composed of GEMM launches and one-pass kernels; where a
// pair of them is one fused kernel later, only the lines named "pair" change.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <tuple>

#include "common/mlp_check.h"
#include "cutlass/mlp_parts.h"

namespace fusedops {
namespace {

using torch::stable::new_empty;

std::tuple<Tensor, Tensor> mlp_forward(const Tensor& x,                        // (..., K)
                                       const Tensor& w1,                       // (H, K)
                                       const std::optional<Tensor>& b1,        // (H,)
                                       const Tensor& w2,                       // (N, H)
                                       const std::optional<Tensor>& b2,        // (N,)
                                       const std::optional<Tensor>& residual,  // (..., N)
                                       int64_t activation, bool save, bool allow_tf32) {
  const MlpShape shape = check_mlp("mlp", x, w1, b1, w2, b2, residual, activation);
  const LaunchScope scope("mlp", x);

  // h = act(x @ w1.T + b1)
  Tensor x_holder;
  const GemmCall call{.op = "mlp",
                      .a = rows_view(x, x_holder),
                      .b = matrix_view(w1).transposed(),
                      .dtype = shape.dtype,
                      .allow_tf32 = allow_tf32,
                      .activation = shape.activation};
  const bool keep_z = save && saved_for_backward(shape.activation) == Saved::kPreact;
  const Tensor h = empty_like_rows(x, shape.hidden);
  const Tensor z = keep_z ? empty_like_rows(x, shape.hidden) : Tensor();
  run_linear(call, b1, h, keep_z ? &z : nullptr, scope);

  // y = h @ w2.T + b2 + residual
  const Tensor y = run_down(call, h, w2, b2, residual, empty_like_rows(x, shape.n), scope);
  return {y, keep_z ? z : save ? h : new_empty(x, {0})};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> mlp_backward(const Tensor& dy,     // (..., N)
                                                        const Tensor& saved,  // (..., H)
                                                        const Tensor& w2,     // (N, H)
                                                        int64_t activation, bool need_dz,
                                                        bool need_db1, bool need_dw2, bool need_db2,
                                                        bool parameters_fp32, bool allow_tf32) {
  const char* op = "mlp_backward";
  const MlpShape shape = check_mlp_backward(op, dy, saved, w2, activation);
  const LaunchScope scope(op, dy);
  const ScalarType parameter = parameters_fp32 ? ScalarType::Float : dy.scalar_type();
  const auto parameter_or_empty = [&](bool needed, std::initializer_list<int64_t> sizes) {
    return needed ? new_empty(dy, sizes, parameter) : new_empty(dy, {0}, parameter);
  };
  const Tensor db1 = parameter_or_empty(need_db1, {shape.hidden});
  const Tensor dw2 = parameter_or_empty(need_dw2, {shape.n, shape.hidden});
  const Tensor db2 = parameter_or_empty(need_db2, {shape.n});
  const bool from_z = saved_for_backward(shape.activation) == Saved::kPreact;
  Tensor dy_holder, saved_holder, hidden_holder;
  const MatrixView dy_view = dense_rows(dy, dy_holder);
  const MatrixView saved_view = dense_rows(saved, saved_holder);
  Tensor hidden;  // h until dw2 has read it, then dz: one buffer, and none before it is needed
  const GemmCall call{
      .op = op, .a = dy_view, .b = matrix_view(w2), .dtype = shape.dtype, .allow_tf32 = allow_tf32};

  // dw2 = dy.T @ h
  if (need_dw2 && from_z) {
    hidden = empty_like_rows(dy, shape.hidden);
    run_gated_act(op, shape, saved_view, nullptr, hidden, scope);
    run_wgrad(call, dy_view, rows_view(hidden, hidden_holder), dw2, scope);
  } else if (need_dw2) {
    run_wgrad(call, dy_view, saved_view, dw2, scope);
  }

  // db2 = sum of dy
  if (need_db2) run_act_backward(op, dy_view, std::nullopt, shape.second(), nullptr, &db2, scope);

  // dz = (dy @ w2) * act', db1. The pair: dgrad, then act' in place with the column sums.
  const bool any_dz = need_dz || need_db1;
  if (any_dz) {
    if (!hidden.defined()) hidden = empty_like_rows(dy, shape.hidden);
    run_gemm(call, hidden, nullptr, scope);
    const bool acts = shape.activation != Activation::kNone;
    run_act_backward(op, rows_view(hidden, hidden_holder), saved_holder, shape.first(),
                     acts ? &hidden : nullptr, need_db1 ? &db1 : nullptr, scope);
  }
  return {need_dz ? hidden : new_empty(dy, {0}), db1, dw2, db2};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("mlp_forward", TORCH_BOX(&mlp_forward));
  m.impl("mlp_backward", TORCH_BOX(&mlp_backward));
}

}  // namespace fusedops
