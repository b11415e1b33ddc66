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

void fp8_wgrad_(const Tensor& a,  // (M, K)
                const Tensor& b,  // (N, K)
                const Tensor& scale_a, const Tensor& scale_b,
                const Tensor& main_grad,  // (M, N) fp32
                bool accumulate) {
  const Fp8MatmulShape shape = check_fp8_wgrad("_fp8_wgrad_", a, b, scale_a, scale_b, main_grad);
  const NoGradGuard no_grad;
  const Tensor y = emulate_fp8_matmul(a, b, scale_a, scale_b, std::nullopt, shape);
  Tensor target = main_grad;
  // NOTE: the stable ABI has no add.
  torch::stable::copy_(target, accumulate ? torch::stable::subtract(main_grad, y, -1.0) : y);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("_fp8_matmul", FUSEDOPS_BOX(&fp8_matmul));
  m.impl("_fp8_wgrad_", FUSEDOPS_BOX(&fp8_wgrad_));
}

}  // namespace fusedops::cpu
