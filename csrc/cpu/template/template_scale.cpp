// The template op on the CPU: what csrc/cuda/template/template_scale.cu does, without a device.
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/checks/tensor_check.h"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/aten.h"
#include "csrc/cpu/pointwise.h"

namespace fusedops::cpu {
namespace {

Tensor template_scale(const Tensor& x,  // any shape
                      double scale) {
  // Checks
  const DType dtype = check_floating("template_scale", "x", x);

  // Allocate
  const NoGradGuard no_grad;
  const Tensor input = dense(x);
  Tensor out = torch::stable::empty(x.sizes(), x.scalar_type());

  // Launch
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = Compute<D>;
    map<T>(data<D>(input), mutable_data<D>(out), x.numel(),
           [scale = static_cast<T>(scale)](T value) { return value * scale; });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("template_scale", FUSEDOPS_BOX(&template_scale));
}

}  // namespace fusedops::cpu
