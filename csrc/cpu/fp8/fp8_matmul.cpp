// FP8 products on the CPU.
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/fp8_emulation.h"

namespace fusedops::cpu {
namespace {

Tensor fp8_matmul(const Tensor& a,  // (M, K)
                  const Tensor& b,  // (N, K)
                  const Tensor& scale_a, const Tensor& scale_b,
                  const std::optional<Tensor>& bias,  // (N,)
                  int64_t activation, int64_t out_dtype) {
  const Fp8MatmulShape shape =
      check_fp8_matmul("_fp8_matmul", a, b, scale_a, scale_b, bias, activation, out_dtype);
  const NoGradGuard no_grad;
  return emulate_fp8_matmul(a, b, scale_a, scale_b, bias, shape);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) { m.impl("_fp8_matmul", FUSEDOPS_BOX(&fp8_matmul)); }

}  // namespace fusedops::cpu
