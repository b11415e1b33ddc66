// mlp and the backward of its second product on the CPU.
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cpu/gemm/mlp_parts.h"

namespace fusedops::cpu {
namespace {

std::tuple<Tensor, Tensor> mlp_forward(const Tensor& x,                        // (..., K)
                                       const Tensor& w1,                       // (H, K)
                                       const std::optional<Tensor>& b1,        // (H,)
                                       const Tensor& w2,                       // (N, H)
                                       const std::optional<Tensor>& b2,        // (N,)
                                       const std::optional<Tensor>& residual,  // (..., N)
                                       int64_t activation, bool save, bool /*allow_tf32*/) {
  const MlpShape shape = check_mlp("mlp", x, w1, b1, w2, b2, residual, activation);
  const NoGradGuard no_grad;
  const ScalarType dtype = x.scalar_type();
  Tensor saved = torch::stable::empty({0}, dtype);
  const Tensor z = preactivation(as_matrix(x, shape.m, shape.k), w1, b1, shape.activation);
  const bool keep_z = saved_for_backward(shape.activation) == Saved::kPreact;
  if (save && keep_z) saved = like_rows(copy_as(z, dtype), x);
  activate(z, shape.activation);
  const Tensor h = to_dtype(z, dtype);
  const Tensor y = down(h, w2, b2, residual, x);
  if (save && !keep_z) saved = like_rows(h, x);
  return {y, saved};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(const char* op, const Tensor& dy,
                                                    const Tensor& saved, const Tensor& w2,
                                                    int64_t activation, bool need_dz, bool need_db1,
                                                    bool need_dw2, bool need_db2,
                                                    bool parameters_fp32) {
  const MlpShape shape = check_mlp_backward(op, dy, saved, w2, activation);
  const NoGradGuard no_grad;
  const ScalarType dtype = dy.scalar_type();
  const ScalarType parameter = parameters_fp32 ? ScalarType::Float : dtype;
  const auto none = [&] { return torch::stable::empty({0}, parameter); };
  const Tensor grad = as_matrix(dy, shape.m, shape.n);
  const Tensor kept = as_matrix(saved, shape.m, shape.hidden);

  // dw2 = dy.T @ h, db2 = sum of dy
  Tensor dw2 = none();
  if (need_dw2) {
    Tensor h = kept;
    if (saved_for_backward(shape.activation) == Saved::kPreact) {
      h = dense(copy_as(kept, wide_dtype(kept)));
      activate(h, shape.activation);
      h = to_dtype(h, dtype);
    }
    dw2 = weight_gradient(grad, h, parameter);
  }
  const Tensor db2 = need_db2 ? sum_rows(grad, parameter) : none();

  // dz = (dy @ w2) * act', db1 = its sum
  Tensor dz = torch::stable::empty({0}, dtype), db1 = none();
  if (need_dz || need_db1) {
    const Tensor hidden = activation_backward(wide_product(grad, w2), kept, shape.activation);
    if (need_db1) db1 = sum_rows(hidden, parameter);
    if (need_dz) dz = like_rows(to_dtype(hidden, dtype), dy);
  }
  return {dz, db1, dw2, db2};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> mlp_backward(const Tensor& dy,     // (..., N)
                                                        const Tensor& saved,  // (..., H)
                                                        const Tensor& w2,     // (N, H)
                                                        int64_t activation, bool need_dz,
                                                        bool need_db1, bool need_dw2, bool need_db2,
                                                        bool parameters_fp32, bool /*allow_tf32*/) {
  return backward("mlp_backward", dy, saved, w2, activation, need_dz, need_db1, need_dw2, need_db2,
                  parameters_fp32);
}

// NOTE: overwriting `saved` would gain nothing here.
std::tuple<Tensor, Tensor, Tensor, Tensor> mlp_backward_(
    const Tensor& dy, const Tensor& saved, const Tensor& w2, const std::optional<Tensor>& main_grad,
    bool accumulate, int64_t activation, bool need_dz, bool need_db1, bool need_dw2, bool need_db2,
    bool parameters_fp32, bool /*allow_tf32*/) {
  const char* op = "mlp_backward_";
  const MlpShape shape = check_mlp_backward(op, dy, saved, w2, activation);
  if (main_grad) check_main_grad(op, *main_grad, shape.n, shape.hidden, dy);
  auto results = backward(op, dy, saved, w2, activation, need_dz, need_db1, need_dw2, need_db2,
                          parameters_fp32 || main_grad);
  if (!main_grad || !need_dw2) return results;
  const NoGradGuard no_grad;
  deliver(std::get<2>(results), *main_grad, accumulate);
  const ScalarType dtype = parameters_fp32 ? ScalarType::Float : dy.scalar_type();
  return {std::get<0>(results), torch::stable::to(std::get<1>(results), dtype),
          torch::stable::empty({0}, dtype), torch::stable::to(std::get<3>(results), dtype)};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("mlp_forward", FUSEDOPS_BOX(&mlp_forward));
  m.impl("mlp_backward", FUSEDOPS_BOX(&mlp_backward));
  m.impl("mlp_backward_", FUSEDOPS_BOX(&mlp_backward_));
}

}  // namespace fusedops::cpu
