// batch_norm_statistics_ and batch_norm_apply on CUDA.
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cuda/batch_norm/batch_norm_host.h"
#include "csrc/cuda/batch_norm/batch_norm_pass.cuh"
#include "csrc/cuda/batch_norm/batch_norm_statistics.cuh"

namespace fusedops::cuda {
std::tuple<Tensor, Tensor> batch_norm_statistics_(
    const Tensor& x_,                           // (..., C)
    const std::optional<Tensor>& moments_,      // (2, C, blocks)
    const std::optional<Tensor>& shift_,        // (C,)
    const std::optional<Tensor>& running_mean,  // (C,), written
    const std::optional<Tensor>& running_var,   // (C,), written
    double momentum) {
  constexpr const char* kOp = "batch_norm_statistics_";
  // Guard
  const LaunchScope scope(kOp, x_);

  // Checks
  const BatchNormShape shape =
      check_batch_norm_statistics(kOp, x_, moments_, shift_, running_mean, running_var);

  // Allocate
  const Tensor mean = new_dense(x_, {shape.channels}, wide_dtype(x_));
  const Tensor var = new_dense(x_, {shape.channels}, wide_dtype(x_));

  // Empty early return
  if (shape.channels == 0) return {mean, var};
  if (shape.rows == 0) {
    Tensor zeros = mean, also = var;
    return {torch::stable::zero_(zeros), torch::stable::zero_(also)};
  }

  // Config
  const Tensor x = dense(x_);
  const std::optional<Tensor> shift = dense(shift_);
  const int vec = access_width(shape.dtype, shape.channels, {x.const_data_ptr()});
  StatisticsProblem problem{shape.rows, shape.channels, x.const_data_ptr(), nullptr, {}};
  Tensor partial;
  if (moments_) {
    partial = dense(*moments_);
    problem.x = nullptr;
    problem.grid.take(shape.rows, kMomentRows, moment_blocks(shape.rows));
  } else {
    problem.grid =
        walk_grid(shape.rows, shape.channels, vec, statistics_unroll(dtype_bytes(shape.dtype)),
                  scope.facts().sm_count, kStatisticsBlocks);
    partial = new_dense(x, {2 * shape.channels * problem.grid.row_blocks}, ScalarType::Double);
  }
  problem.partial = static_cast<double*>(partial.mutable_data_ptr());
  const StatisticsResult result =
      statistics_result(mean, var, shift, running_mean, running_var, momentum);

  // Launch
  const bool overlap = scope.facts().code_version >= 90;
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    launch_statistics<DeviceType<D>>(problem, result, vec, scope.stream(), overlap);
  });

  // Launch check
  check_launch(kOp);
  return {mean, var};
}

Tensor batch_norm_apply(const Tensor& x_,                        // (..., C)
                        const std::optional<Tensor>& mean,       // (C,)
                        const std::optional<Tensor>& var,        // (C,)
                        const std::optional<Tensor>& weight,     // (C,)
                        const std::optional<Tensor>& bias,       // (C,)
                        const std::optional<Tensor>& residual_,  // (..., C)
                        double eps, int64_t activation) {
  constexpr const char* kOp = "batch_norm_apply";
  // Guard
  const LaunchScope scope(kOp, x_);

  // Checks
  const NormVectors vectors{mean, var, weight, bias};
  const BatchNormShape shape = check_batch_norm_apply(kOp, x_, vectors, residual_, activation);

  // Allocate
  const Tensor y = new_dense(x_, x_.sizes());

  // Empty early return
  if (y.numel() == 0) return y;

  // Config
  const Tensor x = dense(x_);
  const std::optional<Tensor> residual = dense(residual_);
  const DenseNorm norm(vectors);
  PassProblem problem{shape.rows, shape.channels};
  problem.x = x.const_data_ptr();
  problem.added = pointer(residual);
  problem.out = y.mutable_data_ptr();
  problem.norm = norm.arguments(eps);
  problem.activation = static_cast<Activation>(activation);
  const int vec =
      access_width(shape.dtype, shape.channels, {problem.x, problem.added, problem.out});
  problem.grid =
      walk_grid(shape.rows, shape.channels, vec, pass_unroll(problem.added == nullptr ? 1 : 2),
                scope.facts().sm_count, kPassBlocks, /*back=*/true);

  // Launch
  launch_pass(problem, shape.dtype, vec, scope, [&]<class T, int kVec, bool kAdded>() {
    return &batch_norm_apply_kernel<T, kVec, kAdded>;
  });

  // Launch check
  check_launch(kOp);
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("batch_norm_statistics_", FUSEDOPS_BOX(&batch_norm_statistics_));
  m.impl("batch_norm_apply", FUSEDOPS_BOX(&batch_norm_apply));
}

}  // namespace fusedops::cuda
