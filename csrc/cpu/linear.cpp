// linear and matmul on the CPU: ATen's GEMM, then the activation in place.
#include <tuple>

#include "common/op_boundary.h"
#include "cpu/activation.h"
#include "cpu/aten.h"

namespace fusedops::cpu {
namespace {

Tensor preact(const Tensor& x,                      // (M, K)
              const Tensor& weight,                 // (N, K)
              const std::optional<Tensor>& bias) {  // (N,)
  return torch::stable::contiguous(aten_linear(x, weight, bias));
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
  const Tensor y = preact(as_matrix(x, shape.m, shape.k), weight, bias);
  activate(y, shape);
  return with_leading_dims(y, x, shape.n);
}

std::tuple<Tensor, Tensor> linear_preact(const Tensor& x,                    // (..., K)
                                         const Tensor& weight,               // (N, K)
                                         const std::optional<Tensor>& bias,  // (N,)
                                         int64_t activation, bool /*allow_tf32*/) {
  const LinearShape shape = check_linear("linear", x, weight, bias, activation);
  const NoGradGuard no_grad;
  const Tensor z = preact(as_matrix(x, shape.m, shape.k), weight, bias);
  const Tensor y = torch::stable::clone(z);
  activate(y, shape);
  return {with_leading_dims(y, x, shape.n), with_leading_dims(z, x, shape.n)};
}

Tensor matmul(const Tensor& a,                    // (M, K)
              const Tensor& b,                    // (K, N)
              const std::optional<Tensor>& bias,  // (N,)
              int64_t activation, bool /*allow_tf32*/) {
  const LinearShape shape = check_matmul("matmul", a, b, bias, activation);
  const NoGradGuard no_grad;
  const Tensor y = preact(a, transposed(b), bias);
  activate(y, shape);
  return y;
}

std::tuple<Tensor, Tensor> matmul_preact(const Tensor& a,                    // (M, K)
                                         const Tensor& b,                    // (K, N)
                                         const std::optional<Tensor>& bias,  // (N,)
                                         int64_t activation, bool /*allow_tf32*/) {
  const LinearShape shape = check_matmul("matmul", a, b, bias, activation);
  const NoGradGuard no_grad;
  const Tensor z = preact(a, transposed(b), bias);
  const Tensor y = torch::stable::clone(z);
  activate(y, shape);
  return {y, z};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("linear", FUSEDOPS_BOX(&linear));
  m.impl("linear_preact", FUSEDOPS_BOX(&linear_preact));
  m.impl("matmul", FUSEDOPS_BOX(&matmul));
  m.impl("matmul_preact", FUSEDOPS_BOX(&matmul_preact));
}

}  // namespace fusedops::cpu
