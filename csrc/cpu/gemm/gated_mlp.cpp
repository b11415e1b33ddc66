// gated_mlp and its backward on the CPU.
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cpu/gemm/mlp_parts.h"

namespace fusedops::cpu {
namespace {

using torch::stable::narrow;
using torch::stable::select;

Tensor mul(const Tensor& a, const Tensor& b) { return call("aten::mul", "Tensor", a, b); }

// (2, ..., H) or (..., 2, H) of like's dtype from the matrices of its halves.
Tensor stack(const Tensor& gate, const Tensor& up,  // (M, H)
             const Tensor& like,                    // (..., C)
             bool packed) {
  const int64_t m = gate.size(0), hidden = gate.size(1);
  Tensor both = packed ? torch::stable::empty({m, 2, hidden}, like.scalar_type())
                       : torch::stable::empty({2, m, hidden}, like.scalar_type());
  Tensor first = select(both, packed ? 1 : 0, 0), second = select(both, packed ? 1 : 0, 1);
  torch::stable::copy_(first, gate);
  torch::stable::copy_(second, up);
  const auto sizes = like.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = hidden;
  shape.insert(packed ? shape.end() - 1 : shape.begin(), 2);
  return result_of_shape(both, shape);
}

// Half `index` of (2, ..., H) or (..., 2, H) as a contiguous matrix of that dtype.
Tensor half(const Tensor& stacked, const MlpShape& shape, bool packed, int64_t index,
            ScalarType dtype) {
  const Tensor part = select(stacked, packed ? stacked.dim() - 2 : 0, index);
  return dense(to_dtype(torch::stable::reshape(part, {shape.m, shape.hidden}), dtype));
}

struct GateAndUp {
  Tensor gate, up;  // (M, H) contiguous, in fp32 (fp64)
};

GateAndUp products(const Tensor& x, const Tensor& w_gate, const std::optional<Tensor>& w_up,
                   const std::optional<Tensor>& b_gate, const std::optional<Tensor>& b_up,
                   const MlpShape& shape) {
  const Tensor rows = as_matrix(x, shape.m, shape.k);
  const ScalarType wide = wide_dtype(x);
  Tensor gate = aten_linear(rows, w_gate, b_gate, wide);
  if (w_up) return {dense(gate), dense(aten_linear(rows, *w_up, b_up, wide))};
  return {dense(narrow(gate, 1, 0, shape.hidden)),
          dense(narrow(gate, 1, shape.hidden, shape.hidden))};
}

Tensor gated_linear(const Tensor& x,                      // (..., K)
                    const Tensor& w_gate,                 // (H or 2H, K)
                    const std::optional<Tensor>& w_up,    // (H, K)
                    const std::optional<Tensor>& b_gate,  // (H or 2H,)
                    const std::optional<Tensor>& b_up,    // (H,)
                    bool /*allow_tf32*/) {
  const MlpShape shape = check_gated_linear("gated_linear", x, w_gate, w_up, b_gate, b_up);
  const NoGradGuard no_grad;
  const auto [gate, up] = products(x, w_gate, w_up, b_gate, b_up, shape);
  return stack(gate, up, x, !w_up);
}

std::tuple<Tensor, Tensor> gated_mlp_forward(const Tensor& x,                        // (..., K)
                                             const Tensor& w_gate,                   // (H or 2H, K)
                                             const std::optional<Tensor>& w_up,      // (H, K)
                                             const std::optional<Tensor>& b_gate,    // (H or 2H,)
                                             const std::optional<Tensor>& b_up,      // (H,)
                                             const Tensor& w_down,                   // (N, H)
                                             const std::optional<Tensor>& b_down,    // (N,)
                                             const std::optional<Tensor>& residual,  // (..., N)
                                             int64_t activation, bool save, bool /*allow_tf32*/) {
  const MlpShape shape = check_gated_mlp("gated_mlp", x, w_gate, w_up, b_gate, b_up, w_down, b_down,
                                         residual, activation);
  const NoGradGuard no_grad;
  const auto [gate, up] = products(x, w_gate, w_up, b_gate, b_up, shape);
  const Tensor h = to_dtype(mul(activated(gate, shape.activation), up), x.scalar_type());
  const Tensor y = down(h, w_down, b_down, residual, x);
  return {y, save ? stack(gate, up, x, !w_up) : torch::stable::empty({0}, x.scalar_type())};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> gated_mlp_backward(
    const Tensor& dy,      // (..., N)
    const Tensor& saved,   // (2, ..., H) or (..., 2, H)
    const Tensor& w_down,  // (N, H)
    int64_t activation, bool packed, bool need_dz, bool need_dbias, bool need_dw_down,
    bool need_db_down, bool parameters_fp32, bool /*allow_tf32*/) {
  const MlpShape shape =
      check_gated_mlp_backward("gated_mlp_backward", dy, saved, w_down, activation, packed);
  const NoGradGuard no_grad;
  const ScalarType dtype = dy.scalar_type();
  const ScalarType parameter = parameters_fp32 ? ScalarType::Float : dtype;
  const auto none = [&] { return torch::stable::empty({0}, parameter); };
  const Tensor grad = as_matrix(dy, shape.m, shape.n);
  const ScalarType wide = wide_dtype(dy);
  const Tensor gate = half(saved, shape, packed, 0, wide), up = half(saved, shape, packed, 1, wide);
  const Tensor act = activated(gate, shape.activation);
  const Tensor dw_down =
      need_dw_down ? weight_gradient(grad, to_dtype(mul(act, up), dtype), parameter) : none();
  const Tensor db_down = need_db_down ? sum_rows(grad, parameter) : none();
  Tensor dz = torch::stable::empty({0}, dtype), dbias = none();
  if (need_dz || need_dbias) {
    const Tensor dh = wide_product(grad, w_down);
    const bool from_output = saved_for_backward(shape.activation) == Saved::kOutput;
    const Tensor dgate =
        activation_backward(mul(dh, up), from_output ? act : gate, shape.activation);
    const Tensor dup = mul(dh, act);
    if (need_dz) dz = stack(dgate, dup, dy, packed);
    if (need_dbias) {
      dbias = torch::stable::empty({2, shape.hidden}, parameter);
      Tensor first = select(dbias, 0, 0), second = select(dbias, 0, 1);
      torch::stable::copy_(first, sum_rows(dgate, parameter));
      torch::stable::copy_(second, sum_rows(dup, parameter));
    }
  }
  return {dz, dbias, dw_down, db_down};
}

std::tuple<Tensor, Tensor, Tensor> gated_mlp_backward_(const Tensor& dy,      // (..., N)
                                                       const Tensor& saved,   // becomes dz
                                                       const Tensor& w_down,  // (N, H)
                                                       const std::optional<Tensor>& main_grad,
                                                       bool accumulate, int64_t activation,
                                                       bool packed, bool need_dbias,
                                                       bool need_dw_down, bool need_db_down,
                                                       bool parameters_fp32, bool allow_tf32) {
  const char* op = "gated_mlp_backward_";
  const MlpShape shape = check_gated_mlp_backward(op, dy, saved, w_down, activation, packed);
  if (main_grad) check_main_grad(op, *main_grad, shape.n, shape.hidden, dy);
  const auto [dz, dbias, dw_down, db_down] =
      gated_mlp_backward(dy, saved, w_down, activation, packed, true, need_dbias, need_dw_down,
                         need_db_down, parameters_fp32 || main_grad, allow_tf32);
  const NoGradGuard no_grad;
  Tensor target = saved;
  torch::stable::copy_(target, dz);
  if (!main_grad || !need_dw_down) return {dbias, dw_down, db_down};
  deliver(dw_down, *main_grad, accumulate);
  const ScalarType dtype = parameters_fp32 ? ScalarType::Float : dy.scalar_type();
  return {torch::stable::to(dbias, dtype), torch::stable::empty({0}, dtype),
          torch::stable::to(db_down, dtype)};
}

std::tuple<Tensor, Tensor, Tensor> gated_input_backward(
    const Tensor& dz,                   // (2, ..., H) or (..., 2, H)
    const Tensor& x,                    // (..., K)
    const Tensor& w_gate,               // (H or 2H, K)
    const std::optional<Tensor>& w_up,  // (H, K)
    bool need_dx, bool need_dw_gate, bool need_dw_up, bool dweight_fp32, bool /*allow_tf32*/) {
  const MlpShape shape = check_gated_input_backward("gated_input_backward", dz, x, w_gate, w_up);
  const NoGradGuard no_grad;
  const ScalarType dtype = x.scalar_type();
  const ScalarType weight_dtype = dweight_fp32 ? ScalarType::Float : dtype;
  const Tensor dgate = half(dz, shape, !w_up, 0, dtype), dup = half(dz, shape, !w_up, 1, dtype);
  Tensor weight = w_gate;
  const Tensor first = w_up ? w_gate : narrow(weight, 0, 0, shape.hidden);
  const Tensor second = w_up ? *w_up : narrow(weight, 0, shape.hidden, shape.hidden);
  Tensor dx = torch::stable::empty({0}, dtype);
  if (need_dx) {
    const Tensor sum = add(wide_product(dgate, first), wide_product(dup, second));
    dx = like_rows(dense(to_dtype(sum, dtype)), x);
  }

  const Tensor rows = as_matrix(x, shape.m, shape.k);
  Tensor dw_gate = torch::stable::empty({0}, weight_dtype);
  Tensor dw_up = torch::stable::empty({0}, weight_dtype);
  if (need_dw_gate && w_up) dw_gate = weight_gradient(dgate, rows, weight_dtype);
  if (need_dw_up && w_up) dw_up = weight_gradient(dup, rows, weight_dtype);
  if (need_dw_gate && !w_up) {
    dw_gate = torch::stable::empty({2 * shape.hidden, shape.k}, weight_dtype);
    Tensor top = narrow(dw_gate, 0, 0, shape.hidden);
    Tensor bottom = narrow(dw_gate, 0, shape.hidden, shape.hidden);
    torch::stable::copy_(top, weight_gradient(dgate, rows, weight_dtype));
    torch::stable::copy_(bottom, weight_gradient(dup, rows, weight_dtype));
  }
  return {dx, dw_gate, dw_up};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("gated_linear", FUSEDOPS_BOX(&gated_linear));
  m.impl("gated_mlp_forward", FUSEDOPS_BOX(&gated_mlp_forward));
  m.impl("gated_mlp_backward", FUSEDOPS_BOX(&gated_mlp_backward));
  m.impl("gated_mlp_backward_", FUSEDOPS_BOX(&gated_mlp_backward_));
  m.impl("gated_input_backward", FUSEDOPS_BOX(&gated_input_backward));
}

}  // namespace fusedops::cpu
