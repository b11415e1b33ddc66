// pointwise_conv on the CPU: ATen's GEMM, then what stands behind it, then one rounding.
#include <vector>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cpu/activation.h"
#include "csrc/cpu/conv/behind.h"
#include "csrc/cpu/pointwise.h"

namespace fusedops::cpu {
namespace {

Tensor pointwise_conv(const Tensor& x,                         // (..., K)
                      const Tensor& weight,                    // (O, K)
                      const std::optional<Tensor>& conv_bias,  // (O,)
                      const std::optional<Tensor>& mean,       // (O,)
                      const std::optional<Tensor>& var,        // (O,)
                      const std::optional<Tensor>& bn_weight,  // (O,)
                      const std::optional<Tensor>& bias,       // (O,)
                      const std::optional<Tensor>& residual_,  // (..., O)
                      double eps, int64_t activation) {
  const NormVectors norm{mean, var, bn_weight, bias};
  const LinearShape s =
      check_pointwise_conv("pointwise_conv", x, weight, conv_bias, norm, residual_, activation);
  const NoGradGuard no_grad;
  const ScalarType wide = wide_dtype(x);
  const Tensor z = aten_linear(as_matrix(x, s.m, s.k), weight, std::nullopt, wide);
  std::optional<Tensor> residual;
  if (residual_) residual = dense(to_dtype(*residual_, wide));
  const auto form = [&]<typename C>(C) {
    const Behind<C> behind(conv_bias, norm, s.n, eps);
    const C* const added = residual ? static_cast<const C*>(residual->const_data_ptr()) : nullptr;
    C* const to = static_cast<C*>(z.mutable_data_ptr());
    torch::stable::parallel_for(0, z.numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        to[i] = behind(to[i], i % s.n);
        if (added) to[i] += added[i];
      }
    });
  };
  wide == ScalarType::Double ? form(double{}) : form(float{});
  activate(z, s.activation);
  const auto sizes = x.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = s.n;
  return result_of_shape(to_dtype(z, x.scalar_type()), shape);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("pointwise_conv", FUSEDOPS_BOX(&pointwise_conv));
}

}  // namespace fusedops::cpu
