// Gradients of linear on the CPU: dz and dbias, then ATen's GEMM for dx and dweight.
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/aten.h"
#include "csrc/cpu/activation.h"
#include "csrc/cpu/gemm/mlp_parts.h"

namespace fusedops::cpu {
namespace {

std::tuple<Tensor, Tensor, Tensor> linear_backward(const Tensor& dy,                    // (..., N)
                                                   const Tensor& x,                     // (..., K)
                                                   const Tensor& weight,                // (N, K)
                                                   const std::optional<Tensor>& saved,  // (..., N)
                                                   int64_t activation, bool need_dx,
                                                   bool need_dweight, bool need_dbias,
                                                   bool dweight_fp32, bool /*allow_tf32*/) {
  const LinearShape shape =
      check_linear_backward("linear_backward", dy, x, weight, saved, activation);
  const NoGradGuard no_grad;
  const ScalarType dtype = x.scalar_type();
  const ScalarType weight_dtype = dweight_fp32 ? ScalarType::Float : dtype;
  const auto none = [](ScalarType type) { return torch::stable::empty({0}, type); };

  // dz, dbias from dz before it is rounded
  const Tensor wide = as_matrix(activation_backward(dy, saved, shape.activation), shape.m, shape.n);
  const Tensor dbias = need_dbias ? sum_rows(wide, weight_dtype) : none(weight_dtype);
  const Tensor dz = to_dtype(wide, dtype);

  // dx = dz @ weight
  const Tensor dx = need_dx ? result_of_shape(dense(aten_mm(dz, weight)), x.sizes()) : none(dtype);

  // dweight = dz.T @ x
  const Tensor dweight =
      need_dweight
          ? weight_gradient(dweight_fp32 ? wide : dz, as_matrix(x, shape.m, shape.k), weight_dtype)
          : none(weight_dtype);
  return {dx, dweight, dbias};
}

Tensor linear_input_backward(const Tensor& dz,      // (..., N)
                             const Tensor& weight,  // (N, K)
                             const Tensor& added,   // (..., K)
                             bool /*allow_tf32*/) {
  const LinearShape shape = check_linear_input_backward("linear_input_backward", dz, weight, added);
  const NoGradGuard no_grad;
  return down(as_matrix(dz, shape.m, shape.n), transposed(weight), std::nullopt, added, added);
}

void linear_wgrad_(const Tensor& dz,         // (..., N)
                   const Tensor& x,          // (..., K)
                   const Tensor& main_grad,  // (N, K) fp32
                   bool accumulate, bool /*allow_tf32*/) {
  const LinearShape shape = check_linear_wgrad("linear_wgrad_", dz, x, main_grad);
  const NoGradGuard no_grad;
  deliver(weight_gradient(as_matrix(dz, shape.m, shape.n), as_matrix(x, shape.m, shape.k),
                          ScalarType::Float),
          main_grad, accumulate);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("linear_wgrad_", FUSEDOPS_BOX(&linear_wgrad_));
  m.impl("linear_backward", FUSEDOPS_BOX(&linear_backward));
  m.impl("linear_input_backward", FUSEDOPS_BOX(&linear_input_backward));
}

}  // namespace fusedops::cpu
