// batch_norm_sums and batch_norm_backward on CUDA.
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cuda/batch_norm/batch_norm_host.h"
#include "csrc/cuda/batch_norm/batch_norm_pass.cuh"

namespace fusedops::cuda {
std::tuple<Tensor, Tensor> batch_norm_sums(const Tensor& dy,                     // (..., C)
                                           const Tensor& x,                      // (..., C)
                                           const std::optional<Tensor>& mean,    // (C,)
                                           const std::optional<Tensor>& var,     // (C,)
                                           const std::optional<Tensor>& weight,  // (C,)
                                           const std::optional<Tensor>& bias,    // (C,)
                                           const std::optional<Tensor>& saved,   // (..., C)
                                           double eps, int64_t activation, bool need_dz) {
  constexpr const char* kOp = "batch_norm_sums";
  // Guard
  const LaunchScope scope(kOp, dy);

  // Checks
  const NormVectors vectors{mean, var, weight, bias};
  const BatchNormShape shape = check_batch_norm_backward(kOp, dy, x, vectors, saved, activation);

  // Allocate
  Tensor sums = new_dense(dy, {2, shape.channels}, wide_dtype(dy));
  const Tensor dz = new_dense(dy, need_dz ? shape_of(dy) : std::vector<int64_t>{0});

  // Empty early return
  if (dy.numel() == 0) return {torch::stable::zero_(sums), dz};

  // Config
  const GradientOperands operands(dy, x, vectors, saved);
  PassProblem problem = operands.problem(shape, eps, static_cast<Activation>(activation));
  if (need_dz) problem.dz = dz.mutable_data_ptr();
  const int vec =
      access_width(shape.dtype, shape.channels, {problem.dy, problem.x, problem.added, problem.dz});
  problem.grid =
      walk_grid(shape.rows, shape.channels, vec, pass_unroll(problem.added == nullptr ? 2 : 3),
                scope.facts().sm_count, kPassBlocks);
  const Tensor partial =
      new_dense(dy, {2 * shape.channels * problem.grid.row_blocks}, ScalarType::Double);
  problem.partial = static_cast<double*>(partial.mutable_data_ptr());

  // Launch
  const cudaError_t status = launch_pass(
      problem, shape.dtype, vec, scope,
      [&]<class T, int kVec, bool kAdded>() { return &batch_norm_sums_kernel<T, kVec, kAdded>; });
  if (status == cudaSuccess) {
    const dim3 warps(static_cast<unsigned>(ceil_div(shape.channels, int64_t{kWalkThreads / 32})));
    const bool overlap = scope.facts().code_version >= 90;
    dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
      using T = DeviceType<D>;
      launch_kernel(batch_norm_finish_sums_kernel<T>, warps, dim3(kWalkThreads), 0, scope.stream(),
                    overlap, problem, static_cast<Compute<T>*>(sums.mutable_data_ptr()));
    });
  }

  // Launch check
  check_launch(kOp);
  return {sums, dz};
}

std::tuple<Tensor, Tensor> batch_norm_backward(const Tensor& dy,                     // (..., C)
                                               const Tensor& x,                      // (..., C)
                                               const std::optional<Tensor>& mean,    // (C,)
                                               const std::optional<Tensor>& var,     // (C,)
                                               const std::optional<Tensor>& weight,  // (C,)
                                               const std::optional<Tensor>& bias,    // (C,)
                                               const std::optional<Tensor>& saved,   // (..., C)
                                               const std::optional<Tensor>& sums_,   // (2, C)
                                               const std::optional<Tensor>& count,   // ()
                                               double eps, int64_t activation, bool need_dz) {
  constexpr const char* kOp = "batch_norm_backward";
  // Guard
  const LaunchScope scope(kOp, dy);

  // Checks
  const NormVectors vectors{mean, var, weight, bias};
  const BatchNormShape shape = check_batch_norm_backward(kOp, dy, x, vectors, saved, activation);
  check_batch_norm_sums(kOp, sums_, count, x);

  // Allocate
  const Tensor dx = new_dense(dy, dy.sizes());
  const Tensor dz = new_dense(dy, need_dz ? shape_of(dy) : std::vector<int64_t>{0});

  // Empty early return
  if (dy.numel() == 0) return {dx, dz};

  // Config
  const GradientOperands operands(dy, x, vectors, saved);
  const std::optional<Tensor> sums = dense(sums_);
  const auto code = static_cast<Activation>(activation);
  PassProblem problem = operands.problem(shape, eps, code);
  if (!sums && (code == Activation::kNone || problem.added_is_output)) problem.x = nullptr;
  problem.out = dx.mutable_data_ptr();
  if (need_dz) problem.dz = dz.mutable_data_ptr();
  problem.sums = pointer(sums);
  problem.count = pointer(count);
  const int vec = access_width(shape.dtype, shape.channels,
                               {problem.dy, problem.x, problem.added, problem.out, problem.dz});
  problem.grid =
      walk_grid(shape.rows, shape.channels, vec, pass_unroll(problem.added == nullptr ? 2 : 3),
                scope.facts().sm_count, kPassBlocks, /*back=*/true);

  // Launch
  launch_pass(problem, shape.dtype, vec, scope, [&]<class T, int kVec, bool kAdded>() {
    return &batch_norm_backward_kernel<T, kVec, kAdded>;
  });

  // Launch check
  check_launch(kOp);
  return {dx, dz};
}

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("batch_norm_sums", FUSEDOPS_BOX(&batch_norm_sums));
  m.impl("batch_norm_backward", FUSEDOPS_BOX(&batch_norm_backward));
}

}  // namespace fusedops::cuda
