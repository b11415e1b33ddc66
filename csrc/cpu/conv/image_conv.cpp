// image_conv and its gradient on the CPU: the loops of first_conv.
#include "csrc/common/checks/batch_norm_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/aten.h"

namespace fusedops::cpu {
namespace {

Tensor image_conv(const Tensor& x,                         // (N, H, W, C)
                  const Tensor& weight,                    // (O, 3, 3, C)
                  const std::optional<Tensor>& conv_bias,  // (O,)
                  const std::optional<Tensor>& mean,       // (O,)
                  const std::optional<Tensor>& var,        // (O,)
                  const std::optional<Tensor>& bn_weight,  // (O,)
                  const std::optional<Tensor>& bias,       // (O,)
                  double eps, int64_t activation) {
  const NormVectors norm{mean, var, bn_weight, bias};
  check_image_conv("image_conv", x, weight, conv_bias, norm, activation);
  const int64_t one = 1;
  return call("fusedops::first_conv", "", x, weight, conv_bias, mean, var, bn_weight, bias, one,
              one, one, one, eps, activation);
}

Tensor image_conv_backward(const Tensor& dy,      // (N, H, W, O)
                           const Tensor& x,       // (N, H, W, C)
                           const Tensor& weight)  // (O, 3, 3, C)
{
  check_image_conv_gradient("image_conv_backward", dy, x, weight);
  const int64_t one = 1;
  return call("fusedops::first_conv_image", "", dy, x, weight, one, one, one, one);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("image_conv", FUSEDOPS_BOX(&image_conv));
  m.impl("image_conv_backward", FUSEDOPS_BOX(&image_conv_backward));
}

}  // namespace fusedops::cpu
