// linear and matmul on the CPU: ATen's GEMM, then the activation in place, then one rounding.
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/aten.h"
#include "csrc/common/host/moments.h"
#include "csrc/cpu/activation.h"

namespace fusedops::cpu {
namespace {

// (act(z), z) in dtype.
std::pair<Tensor, Tensor> with_preact(const Tensor& z, Activation activation, ScalarType dtype) {
  if (z.scalar_type() == dtype) return {activated(z, activation), z};
  const Tensor kept = torch::stable::to(z, dtype);
  activate(z, activation);
  return {torch::stable::to(z, dtype), kept};
}

// The shape of x with its last dimension replaced.
Tensor with_leading_dims(const Tensor& y, const Tensor& x, int64_t n) {
  const auto sizes = x.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = n;
  return result_of_shape(y, shape);
}

Tensor linear(const Tensor& x,                    // (..., K)
              const Tensor& weight,               // (N, K)
              const std::optional<Tensor>& bias,  // (N,)
              int64_t activation, bool /*allow_tf32*/) {
  const LinearShape shape = check_linear("linear", x, weight, bias, activation);
  const NoGradGuard no_grad;
  const Tensor z = preactivation(as_matrix(x, shape.m, shape.k), weight, bias, shape.activation);
  activate(z, shape.activation);
  return with_leading_dims(to_dtype(z, x.scalar_type()), x, shape.n);
}

std::tuple<Tensor, Tensor> linear_preact(const Tensor& x,                    // (..., K)
                                         const Tensor& weight,               // (N, K)
                                         const std::optional<Tensor>& bias,  // (N,)
                                         int64_t activation, bool /*allow_tf32*/) {
  const LinearShape shape = check_linear("linear", x, weight, bias, activation);
  const NoGradGuard no_grad;
  const auto [y, z] =
      with_preact(preactivation(as_matrix(x, shape.m, shape.k), weight, bias, shape.activation),
                  shape.activation, x.scalar_type());
  return {with_leading_dims(y, x, shape.n), with_leading_dims(z, x, shape.n)};
}

std::tuple<Tensor, Tensor> linear_moments(const Tensor& x,         // (..., K)
                                          const Tensor& weight) {  // (N, K)
  const LinearShape shape = check_linear("linear_moments", x, weight, std::nullopt, 0);
  const NoGradGuard no_grad;
  const Tensor y =
      preactivation(as_matrix(x, shape.m, shape.k), weight, std::nullopt, shape.activation);
  const Tensor moments = new_moments(y, shape.m, shape.n);
  fill_moments(y, moments);
  return {with_leading_dims(y, x, shape.n), moments};
}

Tensor matmul(const Tensor& a,                    // (M, K)
              const Tensor& b,                    // (K, N)
              const std::optional<Tensor>& bias,  // (N,)
              int64_t activation, bool /*allow_tf32*/) {
  const LinearShape shape = check_matmul("matmul", a, b, bias, activation);
  const NoGradGuard no_grad;
  const Tensor z = preactivation(a, transposed(b), bias, shape.activation);
  activate(z, shape.activation);
  return to_dtype(z, a.scalar_type());
}

std::tuple<Tensor, Tensor> matmul_preact(const Tensor& a,                    // (M, K)
                                         const Tensor& b,                    // (K, N)
                                         const std::optional<Tensor>& bias,  // (N,)
                                         int64_t activation, bool /*allow_tf32*/) {
  const LinearShape shape = check_matmul("matmul", a, b, bias, activation);
  const NoGradGuard no_grad;
  return with_preact(preactivation(a, transposed(b), bias, shape.activation), shape.activation,
                     a.scalar_type());
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("linear", FUSEDOPS_BOX(&linear));
  m.impl("linear_preact", FUSEDOPS_BOX(&linear_preact));
  m.impl("linear_moments", FUSEDOPS_BOX(&linear_moments));
  m.impl("matmul", FUSEDOPS_BOX(&matmul));
  m.impl("matmul_preact", FUSEDOPS_BOX(&matmul_preact));
}

}  // namespace fusedops::cpu
