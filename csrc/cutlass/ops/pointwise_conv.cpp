// pointwise_conv on CUDA: a kernel for few channels, or a product with the norm in its epilogue,
// where there is one, else a product and a pass.
#include <torch/csrc/stable/library.h>

#include <string>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/aten.h"
#include "csrc/common/host/launch.h"
#include "csrc/cutlass/configs/alignment.h"
#include "csrc/cutlass/kernels/conv/sm90_pointwise_conv.h"
#include "csrc/cutlass/ops/conv_vectors.h"
#include "csrc/cutlass/ops/linear_parts.h"

namespace fusedops {
namespace pointwise_conv {
namespace {

RunFn g_kernels;  // NOTE: zero-initialised before any dynamic initialiser runs.

}  // namespace

RunFn find_kernels() { return g_kernels; }

bool register_kernels(RunFn run) {
  g_kernels = run;
  return true;
}

bool takes(const Call& c, int sm_count) {
  const bool is_half = c.dtype == DType::kFloat16 || c.dtype == DType::kBFloat16;
  return is_half && c.k > 0 && c.k <= kMostK && c.k % 8 == 0 && c.n % 8 == 0 &&
         c.n <= int64_t{kLeastColumns} * sm_count && c.m * c.n < (int64_t{1} << 37) &&
         c.m < (int64_t{1} << 30) && aligned16(c.x) && aligned16(c.weight) &&
         aligned16(c.residual) && aligned16(c.y);
}

}  // namespace pointwise_conv

namespace {

using pointwise_conv::Call;

Tensor by_passes(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& conv_bias,
                 const NormVectors& norm, const std::optional<Tensor>& residual, double eps,
                 int64_t activation) {
  std::optional<Tensor> bias;
  if (conv_bias) bias = cpu::to_dtype(*conv_bias, x.scalar_type());
  const Tensor z = cpu::call("fusedops::linear", "", x, weight, bias, int64_t{0}, false);
  return cpu::call("fusedops::batch_norm_apply", "", z, norm.mean, norm.var, norm.weight, norm.bias,
                   residual, eps, activation);
}

// One of our products with the norm in its epilogue.
bool by_product(const Call& c, const Tensor& x, const Tensor& weight,
                const std::optional<Tensor>& residual, const Tensor& y, const LaunchScope& scope) {
  Tensor holder;
  const GemmCall call{.op = "pointwise_conv",
                      .a = rows_view(x, holder),
                      .b = matrix_view(weight).transposed(),
                      .dtype = c.dtype,
                      .activation = c.activation,
                      .epilogue = Epilogue::kNorm,
                      .residual = residual ? &*residual : nullptr,
                      .norm = c.norm};
  return run_gemm_fused(call, y, scope);
}

// Whether the kernel for few channels is faster than a product where both can run (H200, 64 images:
// 31 us against 69 for 24 to 144 channels on 56x56, 32 against 35 for 144 to 24 with a residual).
bool prefers_own(const Call& c) { return c.k < 40 || (c.residual && c.n <= 32); }

enum class Kernel { kFastest, kOwn, kProduct };

template <Kernel kKernel>
Tensor conv(const Tensor& x_,                        // (..., K)
            const Tensor& weight_,                   // (O, K)
            const std::optional<Tensor>& conv_bias,  // (O,)
            const std::optional<Tensor>& mean,       // (O,)
            const std::optional<Tensor>& var,        // (O,)
            const std::optional<Tensor>& bn_weight,  // (O,)
            const std::optional<Tensor>& bias,       // (O,)
            const std::optional<Tensor>& residual_,  // (..., O)
            double eps, int64_t activation) {
  constexpr const char* kOp = "pointwise_conv";
  // Guard
  const LaunchScope scope(kOp, x_);

  // Checks
  const NormVectors norm{mean, var, bn_weight, bias};
  const LinearShape shape =
      check_pointwise_conv(kOp, x_, weight_, conv_bias, norm, residual_, activation);

  // Allocate
  const Tensor y = empty_like_rows(x_, shape.n);

  // Empty early return
  if (y.numel() == 0) return y;

  // Config
  const Tensor x = dense(x_), weight = dense(weight_);
  const std::optional<Tensor> residual = dense(residual_);
  const ConvVectors vectors(conv_bias, norm);
  Call call{.dtype = shape.dtype,
            .activation = shape.activation,
            .m = shape.m,
            .n = shape.n,
            .k = shape.k,
            .x = shape.k > 0 ? x.const_data_ptr() : nullptr,
            .weight = shape.k > 0 ? weight.const_data_ptr() : nullptr,
            .residual = residual ? residual->const_data_ptr() : nullptr,
            .y = y.mutable_data_ptr(),
            .norm = vectors.norm(eps)};
  const DeviceFacts& facts = scope.facts();
  const bool hopper = facts.capability / 10 == 9 && facts.code_version >= 90;
  const pointwise_conv::RunFn run = hopper ? pointwise_conv::find_kernels() : nullptr;
  const bool own = run != nullptr && pointwise_conv::takes(call, facts.sm_count);
  const bool first =
      kKernel == Kernel::kFastest ? own && prefers_own(call) : kKernel == Kernel::kOwn;
  if (!first && by_product(call, x, weight, residual, y, scope)) return y;
  if (!own) return by_passes(x_, weight_, conv_bias, norm, residual_, eps, activation);

  // Launch
  const char* const failure = run(call, scope.context());
  FUSEDOPS_CHECK(failure == nullptr, kOp, ": the launch failed: ", failure);

  // Launch check
  check_launch(kOp);
  return y;
}

constexpr const char* kArguments =
    "(Tensor x, Tensor weight, Tensor? conv_bias, Tensor? mean, Tensor? var, Tensor? bn_weight, "
    "Tensor? bias, Tensor? residual, float eps, int activation) -> Tensor";

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(fusedops_tuning, m) {
  m.def((std::string("pointwise_conv_by_own_kernel") + kArguments).c_str());
  m.def((std::string("pointwise_conv_by_product") + kArguments).c_str());
}

STABLE_TORCH_LIBRARY_IMPL(fusedops_tuning, CUDA, m) {
  m.impl("pointwise_conv_by_own_kernel", FUSEDOPS_BOX(&conv<Kernel::kOwn>));
  m.impl("pointwise_conv_by_product", FUSEDOPS_BOX(&conv<Kernel::kProduct>));
}

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("pointwise_conv", FUSEDOPS_BOX(&conv<Kernel::kFastest>));
}

}  // namespace fusedops
