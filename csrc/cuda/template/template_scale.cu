// The template op on CUDA. Every op's host entry is this ladder, with these words as comments.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/template/template_scale.cuh"

namespace fusedops::cuda {
namespace {

Tensor template_scale(const Tensor& x,  // any shape
                      double scale) {
  // Guard
  const LaunchScope scope("template_scale", x);

  // Contract
  const Tensor input = dense(x);
  const int64_t count = input.numel();

  // Checks
  const DType dtype = check_floating("template_scale", "x", x);

  // Allocate
  const Tensor out = torch::stable::empty_like(input);

  // Empty early return
  if (count == 0) return out;

  // Config
  const int blocks = template_scale_blocks(count, scope.facts().sm_count);

  // Launch
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    launch_template_scale(static_cast<const T*>(input.const_data_ptr()),
                          static_cast<T*>(out.mutable_data_ptr()), count, scale, blocks,
                          scope.stream());
  });

  // Launch check
  check_launch("template_scale");
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("template_scale", FUSEDOPS_BOX(&template_scale));
}

}  // namespace fusedops::cuda
