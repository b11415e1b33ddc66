// The contract of mlp, gated_mlp and their backward, checked once for CPU and CUDA.
#pragma once

#include "csrc/common/checks/linear_check.h"

namespace fusedops {

// m rows of x, K inputs, H hidden, N outputs.
struct MlpShape {
  int64_t m, k, hidden, n;
  DType dtype;
  Activation activation;

  LinearShape first() const { return {m, hidden, k, dtype, activation}; }
  LinearShape second() const { return {m, n, hidden, dtype, Activation::kNone}; }
};

// A weight with `columns` columns and its bias, both like x.
inline void check_projection(const char* op, const char* weight_name, const Tensor& weight,
                             int64_t columns, const char* bias_name,
                             const std::optional<Tensor>& bias, const Tensor& x) {
  check_like(op, weight_name, weight, "x", x);
  FUSEDOPS_CHECK(weight.dim() == 2 && weight.size(1) == columns, op, ": ", weight_name,
                 " must have shape (*, ", columns, "); got ", shape_string(weight));
  if (!bias) return;
  check_like(op, bias_name, *bias, "x", x);
  FUSEDOPS_CHECK(bias->dim() == 1 && bias->size(0) == weight.size(0), op, ": ", bias_name,
                 " must have shape (", weight.size(0), ",) to match ", weight_name, " ",
                 shape_string(weight), "; got ", shape_string(*bias));
}

inline MlpShape check_mlp(const char* op,
                          const Tensor& x,                        // (..., K)
                          const Tensor& w1,                       // (H, K)
                          const std::optional<Tensor>& b1,        // (H,)
                          const Tensor& w2,                       // (N, H)
                          const std::optional<Tensor>& b2,        // (N,)
                          const std::optional<Tensor>& residual,  // (..., N)
                          int64_t activation) {
  const Activation code = check_activation(op, activation);
  const DType dtype = check_floating(op, "x", x);
  check_min_dim(op, "x", x, 1);
  const int64_t k = x.size(x.dim() - 1);
  check_projection(op, "w1", w1, k, "b1", b1, x);
  check_projection(op, "w2", w2, w1.size(0), "b2", b2, x);
  if (residual) check_rows_like(op, "residual", *residual, "x", x, w2.size(0));
  return {leading_numel(x), k, w1.size(0), w2.size(0), dtype, code};
}

// k is 0: backward of the second product does not see x.
inline MlpShape check_mlp_backward(const char* op,
                                   const Tensor& dy,     // (..., N)
                                   const Tensor& saved,  // (..., H)
                                   const Tensor& w2,     // (N, H)
                                   int64_t activation) {
  const Activation code = check_activation(op, activation);
  const DType dtype = check_floating(op, "dy", dy);
  check_min_dim(op, "dy", dy, 1);
  check_like(op, "w2", w2, "dy", dy);
  const int64_t n = dy.size(dy.dim() - 1);
  FUSEDOPS_CHECK(w2.dim() == 2 && w2.size(0) == n, op, ": w2 must have shape (", n, ", *); got ",
                 shape_string(w2));
  check_rows_like(op, "saved", saved, "dy", dy, w2.size(1));
  return {leading_numel(dy), 0, w2.size(1), n, dtype, code};
}

// ---- gated ----

// w_up is None for a packed w_gate (2H, K) with b_gate (2H,): gate rows first. n is 0.
inline MlpShape check_gated_linear(const char* op,
                                   const Tensor& x,                      // (..., K)
                                   const Tensor& w_gate,                 // (H, K)
                                   const std::optional<Tensor>& w_up,    // (H, K)
                                   const std::optional<Tensor>& b_gate,  // (H,)
                                   const std::optional<Tensor>& b_up) {  // (H,)
  const DType dtype = check_floating(op, "x", x);
  check_min_dim(op, "x", x, 1);
  const int64_t k = x.size(x.dim() - 1);
  check_projection(op, "w_gate", w_gate, k, "b_gate", b_gate, x);
  int64_t hidden = w_gate.size(0);
  if (w_up) {
    check_projection(op, "w_up", *w_up, k, "b_up", b_up, x);
    check_same_shape(op, "w_up", *w_up, "w_gate", w_gate);
  } else {
    FUSEDOPS_CHECK(hidden % 2 == 0, op,
                   ": w_gate must have an even number of rows when w_up is None; got ",
                   shape_string(w_gate));
    FUSEDOPS_CHECK(!b_up, op, ": b_up must be None when w_up is None; got ", shape_string(*b_up));
    hidden /= 2;
  }
  return {leading_numel(x), k, hidden, 0, dtype, Activation::kNone};
}

inline MlpShape check_gated_mlp(const char* op,
                                const Tensor& x,                        // (..., K)
                                const Tensor& w_gate,                   // (H, K)
                                const std::optional<Tensor>& w_up,      // (H, K)
                                const std::optional<Tensor>& b_gate,    // (H,)
                                const std::optional<Tensor>& b_up,      // (H,)
                                const Tensor& w_down,                   // (N, H)
                                const std::optional<Tensor>& b_down,    // (N,)
                                const std::optional<Tensor>& residual,  // (..., N)
                                int64_t activation) {
  const Activation code = check_activation(op, activation);
  MlpShape shape = check_gated_linear(op, x, w_gate, w_up, b_gate, b_up);
  check_projection(op, "w_down", w_down, shape.hidden, "b_down", b_down, x);
  if (residual) check_rows_like(op, "residual", *residual, "x", x, w_down.size(0));
  shape.n = w_down.size(0);
  shape.activation = code;
  return shape;
}

// `stacked` is (2, ..., H), or (..., 2, H) where packed, with the leading dimensions of `like`.
inline void check_stacked(const char* op, const char* name, const Tensor& stacked, bool packed,
                          const char* like_name, const Tensor& like, int64_t hidden) {
  check_like(op, name, stacked, like_name, like);
  const int64_t lead = like.dim() - 1;
  const int64_t pair = packed ? lead : 0;
  bool matches =
      stacked.dim() == lead + 2 && stacked.size(pair) == 2 && stacked.size(lead + 1) == hidden;
  for (int64_t i = 0; matches && i < lead; ++i) {
    matches = stacked.size(packed ? i : i + 1) == like.size(i);
  }
  FUSEDOPS_CHECK(matches, op, ": ", name, " must have shape ", packed ? "(..., 2, " : "(2, ..., ",
                 hidden, ") with the leading dimensions of ", like_name, " ", shape_string(like),
                 "; got ", shape_string(stacked));
}

inline MlpShape check_gated_mlp_backward(const char* op,
                                         const Tensor& dy,      // (..., N)
                                         const Tensor& saved,   // (2, ..., H) or (..., 2, H)
                                         const Tensor& w_down,  // (N, H)
                                         int64_t activation, bool packed) {
  const Activation code = check_activation(op, activation);
  const DType dtype = check_floating(op, "dy", dy);
  check_min_dim(op, "dy", dy, 1);
  check_like(op, "w_down", w_down, "dy", dy);
  const int64_t n = dy.size(dy.dim() - 1);
  FUSEDOPS_CHECK(w_down.dim() == 2 && w_down.size(0) == n, op, ": w_down must have shape (", n,
                 ", *); got ", shape_string(w_down));
  check_stacked(op, "saved", saved, packed, "dy", dy, w_down.size(1));
  return {leading_numel(dy), 0, w_down.size(1), n, dtype, code};
}

// n is 0: backward of the first products does not see y.
inline MlpShape check_gated_input_backward(const char* op,
                                           const Tensor& dz,      // (2, ..., H), (..., 2, H)
                                           const Tensor& x,       // (..., K)
                                           const Tensor& w_gate,  // (H or 2H, K)
                                           const std::optional<Tensor>& w_up) {  // (H, K)
  check_floating(op, "dz", dz);
  check_like(op, "x", x, "dz", dz);
  const MlpShape shape = check_gated_linear(op, x, w_gate, w_up, std::nullopt, std::nullopt);
  check_stacked(op, "dz", dz, !w_up, "x", x, shape.hidden);
  return shape;
}

}  // namespace fusedops
