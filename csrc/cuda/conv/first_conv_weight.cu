// first_conv_weight on CUDA.
#include "csrc/common/checks/op_boundary.h"
#include "csrc/cuda/conv/first_host.h"
#include "csrc/cuda/conv/first_weight.cuh"

namespace fusedops::cuda {
namespace {

void launch_first_weight(const LaunchScope& scope, DType dtype, FirstWeightProblem problem,
                         const Tensor& dweight) {
  FirstProblem& p = problem.forward;
  const bool overlap = scope.facts().code_version >= 90;
  const int instance = first_instance(p, dtype);
  if (instance == kAnyFirst) {
    const dim3 grid(static_cast<unsigned>(dweight.numel()));
    dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
      launch_kernel(first_weight_any_kernel<DeviceType<D>>, grid, dim3(kFirstThreads), 0,
                    scope.stream(), overlap, p, dweight.mutable_data_ptr());
    });
    return;
  }
  const dim3 grid = first_grid(p, int64_t{scope.facts().sm_count} * first_weight_blocks(instance));
  const Tensor partial = new_dense(dweight, std::vector<int64_t>{int64_t{grid.x} * dweight.numel()},
                                   ScalarType::Float);
  problem.partial = static_cast<float*>(partial.mutable_data_ptr());
  with_half(dtype, [&]<class T>() {
    dispatch(FirstInstances{}, instance, [&]<int kInstance>(Tag<kInstance>) {
      if constexpr (kInstance != kAnyFirst) {
        launch_kernel(first_weight_kernel<T, kInstance>, grid,
                      dim3(first_weight_threads(kInstance)), 0, scope.stream(), overlap, problem);
      }
    });
  });
  launch_join(scope, dtype,
              {problem.partial, dweight.mutable_data_ptr(), grid.x, dweight.numel(), 1});
}

Tensor first_conv_weight(const Tensor& dy_,      // (N, H', W', O)
                         const Tensor& x_,       // (N, H, W, C)
                         const Tensor& weight_,  // (O, kh, kw, C)
                         int64_t stride_h, int64_t stride_w, int64_t pad_h, int64_t pad_w) {
  constexpr const char* kOp = "first_conv_weight";
  // Guard
  const LaunchScope scope(kOp, x_);

  // Checks
  const DepthwiseShape s =
      check_first_conv_gradient(kOp, dy_, x_, weight_, {stride_h, stride_w, pad_h, pad_w});

  // Allocate
  Tensor dweight = new_dense(weight_, weight_.sizes());

  // Empty early return
  if (dweight.numel() == 0) return dweight;
  if (dy_.numel() == 0 || x_.numel() == 0) return torch::stable::zero_(dweight);

  // Config
  Tensor dy = dense(dy_);
  const Tensor x = dense(x_);
  FirstWeightProblem problem{first_problem(s, weight_.size(0)), nullptr};
  problem.forward.x = x.const_data_ptr();
  problem.forward.y = dy.mutable_data_ptr();

  // Launch
  launch_first_weight(scope, check_floating(kOp, "x", x_), problem, dweight);

  // Launch check
  check_launch(kOp);
  return dweight;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("first_conv_weight", FUSEDOPS_BOX(&first_conv_weight));
}

}  // namespace fusedops::cuda
