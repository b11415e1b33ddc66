// dz = dy * act'(saved) and dbias = dz summed over rows, on the CPU.
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/aten.h"
#include "csrc/cpu/activation.h"

namespace fusedops::cpu {
namespace {

std::tuple<Tensor, Tensor> act_backward_bias_grad(const Tensor& dy,                    // (..., N)
                                                  const std::optional<Tensor>& saved,  // (..., N)
                                                  int64_t activation, bool need_dbias,
                                                  bool dbias_fp32) {
  const LinearShape shape = check_act_backward("act_backward_bias_grad", dy, saved, activation);
  const NoGradGuard no_grad;
  // NOTE: an op may not return its input.
  const Tensor dz = shape.activation == Activation::kNone
                        ? dense(torch::stable::clone(dy))
                        : activation_backward(dy, saved, shape.activation);
  const ScalarType dtype = dbias_fp32 ? ScalarType::Float : dy.scalar_type();
  Tensor dbias = torch::stable::empty({0}, dtype);
  if (need_dbias) dbias = sum_rows(as_matrix(dz, shape.m, shape.n), dtype);  // not rounded yet
  return {to_dtype(dz, dy.scalar_type()), dbias};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("act_backward_bias_grad", FUSEDOPS_BOX(&act_backward_bias_grad));
}

}  // namespace fusedops::cpu
