// scale_gradient_ on CUDA.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "csrc/common/checks/linear_cross_entropy_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/aten.h"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/rows/softmax/scale_gradient.cuh"
#include "csrc/cuda/rows/team/row_layout.h"

namespace fusedops::cuda {
namespace {

void scale_gradient_(const Tensor& gradient, const Tensor& dloss,  // ()
                     const Tensor& scale) {                        // (1,)
  constexpr const char* kOp = "scale_gradient_";
  // Guard
  const LaunchScope scope(kOp, gradient);

  // Checks
  const DType dtype = check_scale_gradient(kOp, gradient, dloss, scale);
  const auto number = [&](const char* name, const Tensor& tensor) {
    return DeviceNumber{tensor.const_data_ptr(), check_floating(kOp, name, tensor)};
  };

  // Empty early return
  const int64_t count = gradient.numel();
  if (count == 0) return;

  // Config
  const fusedops::cpu::NoGradGuard no_grad;
  const Tensor rows = dense(gradient);
  const bool aligned = reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % 16 == 0;
  const int64_t most = int64_t{scope.facts().sm_count} * kScaleGradientBlocks;

  // Launch
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    const auto launch = [&]<int kVec>(Tag<kVec>) {
      const int64_t blocks = ceil_div(ceil_div(count, int64_t{kVec}), kScaleGradientThreads);
      launch_kernel(scale_gradient_kernel<T, kVec>,
                    dim3(static_cast<unsigned>(std::min(blocks, most))),
                    dim3(kScaleGradientThreads), 0, scope.stream(), scope.context().overlap,
                    static_cast<T*>(rows.mutable_data_ptr()), count, number("dloss", dloss),
                    number("scale", scale));
    };
    aligned ? launch(Tag<kChunkOf<T>>{}) : launch(Tag<1>{});
  });

  // Launch check
  check_launch(kOp);
  if (gradient.is_contiguous()) return;
  Tensor strided = gradient;
  torch::stable::copy_(strided, rows);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("scale_gradient_", FUSEDOPS_BOX(&scale_gradient_));
}

}  // namespace fusedops::cuda
