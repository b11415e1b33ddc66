// _fp8_norm on the CPU.
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/fp8_norm_parts.h"

namespace fusedops::cpu {
namespace {

Fp8NormResult fp8_norm(const Tensor& x,                        // (M, K)
                       const std::optional<Tensor>& residual,  // (M, K)
                       const std::optional<Tensor>& weight,    // (K,)
                       const std::optional<Tensor>& bias,      // (K,)
                       bool rms, double eps, int64_t format, int64_t rows, int64_t columns,
                       bool power_of_two) {
  const Fp8NormOptions options{rms, eps, format, rows, columns, power_of_two};
  check_fp8_norm("_fp8_norm", x, residual, weight, bias, options);
  const NoGradGuard no_grad;
  return compose_fp8_norm(x, residual, weight, bias, options);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) { m.impl("_fp8_norm", FUSEDOPS_BOX(&fp8_norm)); }

}  // namespace fusedops::cpu
