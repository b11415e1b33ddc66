// mlp on CUDA: both products of y = act(x @ w1.T + b1) @ w2.T + b2 + residual, and the backward of
// the second product with the activation: one kernel where run_gemm_gradient has it for the
// problem, else a product and a pass.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "csrc/common/checks/mlp_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/cutlass/launch/unaligned_gemm.h"
#include "csrc/cutlass/ops/mlp_parts.h"

namespace fusedops {
namespace {

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
  return {y, keep_z ? z : save ? h : new_dense(x, {0})};
}

// The second product's backward with the activation's.
struct MlpBackward {
  const char* op;
  const Tensor &dy, &saved, &w2;  // (..., N), (..., H), (N, H)
  int64_t activation;
  bool need_dz, need_db1, need_dw2, need_db2, parameters_fp32, allow_tf32;
  bool owned = false;                 // saved may be overwritten
  const Tensor* main_grad = nullptr;  // where dw2 goes instead
  bool accumulate = false;            // it is added there
};

// Whether dz is expected to take less time as a product and a pass, which reads it and what forward
// saved; h over z would be a pass, too.
bool dz_apart(const GemmCall& call, bool over_z, const LaunchScope& scope) {
  return takes_apart(call, Epilogue::kGrad, over_z ? Passes{2, 5} : Passes{1, 3}, scope);
}

// dy for the products that are wanted.
MatrixView readable_dy(const MlpBackward& b, GemmCall call, bool apart, const Tensor& saved,
                       Tensor& holder, const LaunchScope& scope) {
  if (!apart) call.epilogue = Epilogue::kGrad;
  Tensor saved_holder;
  const MatrixView hidden = rows_view(saved, saved_holder);
  return gradient_rows(call, b.need_dz || b.need_db1, b.need_dw2 ? &hidden : nullptr,
                       b.main_grad || b.parameters_fp32, holder, scope);
}

// dz = (dy @ w2) * act' and its sums (db1, where not null).
void run_product_and_pass(GemmCall product, const MlpShape& shape, const Tensor& saved,
                          const Tensor& dz, const Tensor* db1, const LaunchScope& scope) {
  product.activation = Activation::kNone;
  run_gemm(product, dz, nullptr, scope);
  Tensor holder;
  const bool acts = shape.activation != Activation::kNone;
  run_act_backward(product.op, rows_view(dz, holder), saved, shape.first(), acts ? &dz : nullptr,
                   db1, scope);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> run(const MlpBackward& b) {
  const MlpShape shape = check_mlp_backward(b.op, b.dy, b.saved, b.w2, b.activation);
  if (b.main_grad) check_main_grad(b.op, *b.main_grad, shape.n, shape.hidden, b.dy);
  const LaunchScope scope(b.op, b.dy);
  const auto gradient = [&](bool needed, std::initializer_list<int64_t> sizes) {
    return parameter_gradient(b.dy, needed, sizes, b.parameters_fp32);
  };
  const Tensor db1 = gradient(b.need_db1, {shape.hidden}), db2 = gradient(b.need_db2, {shape.n});
  const Tensor dw2 = gradient(b.need_dw2 && !b.main_grad, {shape.n, shape.hidden});
  const bool from_z = saved_for_backward(shape.activation) == Saved::kPreact;
  const bool any_dz = b.need_dz || b.need_db1;
  Tensor dy_holder, rows_holder, holder;
  const Tensor saved = dense(b.saved);
  GemmCall call{b.op,
                dense_rows(b.dy, dy_holder),
                matrix_view(b.w2),
                shape.dtype,
                b.allow_tf32,
                nullptr,
                shape.activation};
  const bool over_z = b.owned && from_z && b.need_dw2;
  const bool apart = any_dz && dz_apart(call, over_z, scope);
  const MatrixView dy = call.a = readable_dy(b, call, apart, saved, rows_holder, scope);
  Tensor dz;  // first h, where dw2 needs it and it has no other place

  // dz = (dy @ w2) * act', its sums, and h over z: one kernel
  GradientOutputs fused;
  if (saved_for_backward(shape.activation) != Saved::kNothing) fused.saved = &saved;
  if (b.need_db1) fused.dbias = &db1;
  const auto run_fused = [&](const Tensor* hidden) {
    if (!dz.defined()) dz = empty_like_rows(b.dy, shape.hidden);
    fused.dz = &dz;
    fused.hidden = hidden;
    return dtype_bytes(shape.dtype) == 2 && !apart && run_gemm_gradient(call, fused, scope);
  };
  const bool done = over_z && any_dz && run_fused(&saved);

  // dw2 = dy.T @ h, db2 = sum of dy
  const auto wgrad = [&](const Tensor& h) {
    GemmCall product = call;
    product.accumulate = b.accumulate && b.main_grad;
    run_wgrad(product, dy, rows_view(h, holder), b.main_grad ? *b.main_grad : dw2, scope);
  };
  if (b.need_dw2 && from_z && !done) {
    if (!dz.defined()) dz = empty_like_rows(b.dy, shape.hidden);
    run_gated_act(b.op, shape, rows_view(saved, holder), nullptr, dz, scope);
    wgrad(dz);
  } else if (b.need_dw2) {
    wgrad(saved);
  }
  if (b.need_db2) {
    run_act_backward(b.op, dy, std::nullopt, shape.second(), nullptr, &db2, scope);
  }

  if (any_dz && !done && !run_fused(nullptr)) {
    run_product_and_pass(call, shape, saved, dz, b.need_db1 ? &db1 : nullptr, scope);
  }
  return {b.need_dz ? dz : new_dense(b.dy, {0}), db1, dw2, db2};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> mlp_backward(const Tensor& dy,     // (..., N)
                                                        const Tensor& saved,  // (..., H)
                                                        const Tensor& w2,     // (N, H)
                                                        int64_t activation, bool need_dz,
                                                        bool need_db1, bool need_dw2, bool need_db2,
                                                        bool parameters_fp32, bool allow_tf32) {
  return run({"mlp_backward", dy, saved, w2, activation, need_dz, need_db1, need_dw2, need_db2,
              parameters_fp32, allow_tf32});
}

std::tuple<Tensor, Tensor, Tensor, Tensor> mlp_backward_(
    const Tensor& dy,                        // (..., N)
    const Tensor& saved,                     // (..., H)
    const Tensor& w2,                        // (N, H)
    const std::optional<Tensor>& main_grad,  // (N, H)
    bool accumulate, int64_t activation, bool need_dz, bool need_db1, bool need_dw2, bool need_db2,
    bool parameters_fp32, bool allow_tf32) {
  return run({"mlp_backward_", dy, saved, w2, activation, need_dz, need_db1, need_dw2, need_db2,
              parameters_fp32, allow_tf32, true, main_grad ? &*main_grad : nullptr, accumulate});
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("mlp_forward", FUSEDOPS_BOX(&mlp_forward));
  m.impl("mlp_backward", FUSEDOPS_BOX(&mlp_backward));
  m.impl("mlp_backward_", FUSEDOPS_BOX(&mlp_backward_));
}

}  // namespace fusedops
