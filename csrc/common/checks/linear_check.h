// The contract of linear, matmul and their backward, checked once for CPU and CUDA.
#pragma once

#include <optional>

#include "csrc/common/activation.h"
#include "csrc/common/checks/tensor_check.h"

namespace fusedops {

struct LinearShape {
  int64_t m, n, k;
  DType dtype;
  Activation activation;
};

inline Activation check_activation(const char* op, int64_t activation) {
  FUSEDOPS_CHECK(activation >= 0 && activation < kNumActivations, op,
                 ": activation must be a code from 0 to ", kNumActivations - 1, "; got ",
                 activation);
  return static_cast<Activation>(activation);
}

inline void check_bias(const char* op, const Tensor& bias,  // (N,)
                       int64_t n, const char* like_name, const Tensor& like) {
  FUSEDOPS_CHECK(bias.dim() == 1 && bias.size(0) == n, op, ": bias must have shape (", n,
                 ",) to match ", like_name, " ", shape_string(like), "; got ", shape_string(bias));
}

inline LinearShape check_linear(const char* op,
                                const Tensor& x,                    // (..., K)
                                const Tensor& weight,               // (N, K)
                                const std::optional<Tensor>& bias,  // (N,)
                                int64_t activation) {
  const Activation code = check_activation(op, activation);
  const DType dtype = check_floating(op, "x", x);
  check_like(op, "weight", weight, "x", x);
  if (bias) check_like(op, "bias", *bias, "x", x);
  check_min_dim(op, "x", x, 1);
  check_dim(op, "weight", weight, 2, "(N, K)");
  const int64_t k = x.size(x.dim() - 1);
  FUSEDOPS_CHECK(weight.size(1) == k, op, ": weight must have shape (N, ", k, ") to match x (..., ",
                 k, "); got ", shape_string(weight));
  if (bias) check_bias(op, *bias, weight.size(0), "weight", weight);
  return {leading_numel(x), weight.size(0), k, dtype, code};
}

inline LinearShape check_matmul(const char* op,
                                const Tensor& a,                    // (M, K)
                                const Tensor& b,                    // (K, N)
                                const std::optional<Tensor>& bias,  // (N,)
                                int64_t activation) {
  const Activation code = check_activation(op, activation);
  const DType dtype = check_floating(op, "a", a);
  check_like(op, "b", b, "a", a);
  if (bias) check_like(op, "bias", *bias, "a", a);
  check_dim(op, "a", a, 2, "(M, K)");
  check_dim(op, "b", b, 2, "(K, N)");
  FUSEDOPS_CHECK(b.size(0) == a.size(1), op, ": b must have shape (", a.size(1), ", N) to match a ",
                 shape_string(a), "; got ", shape_string(b));
  if (bias) check_bias(op, *bias, b.size(1), "b", b);
  return {a.size(0), b.size(1), a.size(1), dtype, code};
}

// Present exactly when the activation's derivative needs it, and like dy.
inline void check_saved(const char* op, const Tensor& dy,
                        const std::optional<Tensor>& saved,  // (..., N)
                        Activation activation) {
  if (saved_for_backward(activation) == Saved::kNothing) return;
  const char* what = saved_for_backward(activation) == Saved::kOutput ? "the forward output y"
                                                                      : "the pre-activation z";
  FUSEDOPS_CHECK(saved.has_value(), op, ": saved must be ", what, " for activation code ",
                 static_cast<int64_t>(activation), "; got None");
  check_like(op, "saved", *saved, "dy", dy);
  check_same_shape(op, "saved", *saved, "dy", dy);
}

inline LinearShape check_linear_backward(const char* op,
                                         const Tensor& dy,                    // (..., N)
                                         const Tensor& x,                     // (..., K)
                                         const Tensor& weight,                // (N, K)
                                         const std::optional<Tensor>& saved,  // (..., N)
                                         int64_t activation) {
  const LinearShape shape = check_linear(op, x, weight, std::nullopt, activation);
  check_like(op, "dy", dy, "x", x);
  bool matches = dy.dim() == x.dim() && dy.size(dy.dim() - 1) == shape.n;
  for (int64_t i = 0; matches && i + 1 < x.dim(); ++i) matches = dy.size(i) == x.size(i);
  FUSEDOPS_CHECK(matches, op, ": dy must have the shape of x ", shape_string(x),
                 " with a last dimension of ", shape.n, "; got ", shape_string(dy));
  check_saved(op, dy, saved, shape.activation);
  return shape;
}

// `tensor` has the leading dimensions of x and `columns` columns.
inline void check_rows_like(const char* op, const char* name, const Tensor& tensor,
                            const char* x_name, const Tensor& x, int64_t columns) {
  check_like(op, name, tensor, x_name, x);
  bool matches = tensor.dim() == x.dim() && tensor.size(x.dim() - 1) == columns;
  for (int64_t i = 0; matches && i + 1 < x.dim(); ++i) matches = tensor.size(i) == x.size(i);
  FUSEDOPS_CHECK(matches, op, ": ", name, " must have the shape of ", x_name, " ", shape_string(x),
                 " with a last dimension of ", columns, "; got ", shape_string(tensor));
}

inline LinearShape check_linear_input_backward(const char* op,
                                               const Tensor& dz,       // (..., N)
                                               const Tensor& weight,   // (N, K)
                                               const Tensor& added) {  // (..., K)
  const DType dtype = check_floating(op, "dz", dz);
  check_min_dim(op, "dz", dz, 1);
  check_like(op, "weight", weight, "dz", dz);
  check_like(op, "added", added, "dz", dz);
  check_dim(op, "weight", weight, 2, "(N, K)");
  const int64_t n = dz.size(dz.dim() - 1), k = weight.size(1);
  FUSEDOPS_CHECK(weight.size(0) == n, op, ": weight must have shape (", n,
                 ", K) to match dz (..., ", n, "); got ", shape_string(weight));
  check_rows_like(op, "added", added, "dz", dz, k);
  return {leading_numel(dz), n, k, dtype, Activation::kNone};
}

// main_grad (N, K) is fp32 and on the device of `like`.
inline void check_main_grad(const char* op, const Tensor& main_grad, int64_t n, int64_t k,
                            const Tensor& like) {
  FUSEDOPS_CHECK(same_device(main_grad, like), op, ": main_grad must be on ", device_string(like),
                 "; got ", device_string(main_grad));
  FUSEDOPS_CHECK(main_grad.scalar_type() == ScalarType::Float && main_grad.dim() == 2 &&
                     main_grad.size(0) == n && main_grad.size(1) == k,
                 op, ": main_grad must be a float32 tensor of shape (", n, ", ", k, "); got ",
                 dtype_name(main_grad.scalar_type()), " ", shape_string(main_grad));
}

// k: columns of x.
inline LinearShape check_linear_wgrad(const char* op,
                                      const Tensor& dz,           // (..., N)
                                      const Tensor& x,            // (..., K)
                                      const Tensor& main_grad) {  // (N, K)
  const DType dtype = check_floating(op, "dz", dz);
  check_min_dim(op, "dz", dz, 1);
  check_like(op, "x", x, "dz", dz);
  bool matches = dz.dim() == x.dim();
  for (int64_t i = 0; matches && i + 1 < x.dim(); ++i) matches = dz.size(i) == x.size(i);
  FUSEDOPS_CHECK(matches, op, ": x must have the leading dimensions of dz ", shape_string(dz),
                 "; got ", shape_string(x));
  const int64_t n = dz.size(dz.dim() - 1), k = x.size(x.dim() - 1);
  check_main_grad(op, main_grad, n, k, dz);
  return {leading_numel(dz), n, k, dtype, Activation::kNone};
}

// m = rows of dy, n = columns; k is 0.
inline LinearShape check_act_backward(const char* op,
                                      const Tensor& dy,                    // (..., N)
                                      const std::optional<Tensor>& saved,  // (..., N)
                                      int64_t activation) {
  const Activation code = check_activation(op, activation);
  const DType dtype = check_floating(op, "dy", dy);
  check_min_dim(op, "dy", dy, 1);
  check_saved(op, dy, saved, code);
  return {leading_numel(dy), dy.size(dy.dim() - 1), 0, dtype, code};
}

}  // namespace fusedops
