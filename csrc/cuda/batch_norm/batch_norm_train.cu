// batch_norm_train_ and batch_norm_train_backward on CUDA: one kernel each where their plan has one
// for the shape, else the passes one by one.
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/batch_norm_parts.h"
#include "csrc/cuda/batch_norm/batch_norm_host.h"
#include "csrc/cuda/batch_norm/batch_norm_train_launch.cuh"

namespace fusedops::cuda {
namespace {

template <class T, bool kForward>
void launch_typed(const TrainProblem& problem, cudaStream_t stream) {
  with_added(problem.pass, [&]<bool kAdded>() {
    kForward ? launch_train_forward<T, kAdded>(problem, stream)
             : launch_train_backward<T, kAdded>(problem, stream);
  });
}

template <bool kForward>
void launch_problem(const TrainProblem& problem, DType dtype, cudaStream_t stream) {
  if (dtype == DType::kFloat16) {
    launch_typed<__half, kForward>(problem, stream);
  } else if (dtype == DType::kBFloat16) {
    launch_typed<__nv_bfloat16, kForward>(problem, stream);
  } else {
    launch_typed<float, kForward>(problem, stream);
  }
}

std::optional<TrainPlan> plan_for(const BatchNormShape& shape, int vec, int inputs,
                                  const DeviceFacts& facts) {
  if (vec == 1 || shape.dtype == DType::kFloat64) return std::nullopt;
  return train_plan(shape.rows, shape.channels, vec, facts.sm_count,
                    train_slots(facts.shared_memory_per_block, inputs));
}

TrainProblem problem_of(const BatchNormShape& shape, const TrainPlan& plan, const DenseNorm& norm,
                        double eps, int64_t activation, const Tensor& partial) {
  TrainProblem problem{{shape.rows, shape.channels}};
  problem.slots = plan.slots;
  problem.pass.partial = static_cast<double*>(partial.mutable_data_ptr());
  problem.pass.norm = norm.arguments(eps);
  problem.pass.activation = static_cast<Activation>(activation);
  problem.pass.grid = plan.grid;
  return problem;
}

// Sums of blocks.
Tensor partial_sums(const Tensor& like, const BatchNormShape& shape, const TrainPlan& plan) {
  return torch::stable::new_empty(like, {2 * shape.channels * plan.grid.row_blocks},
                                  ScalarType::Double);
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_train_(
    const Tensor& x_,                           // (..., C)
    const std::optional<Tensor>& weight,        // (C,)
    const std::optional<Tensor>& bias,          // (C,)
    const std::optional<Tensor>& residual_,     // (..., C)
    const std::optional<Tensor>& shift_,        // (C,)
    const std::optional<Tensor>& running_mean,  // (C,), written
    const std::optional<Tensor>& running_var,   // (C,), written
    double momentum, double eps, int64_t activation) {
  constexpr const char* kOp = "batch_norm_train_";
  // Guard
  const LaunchScope scope(kOp, x_);

  // Checks
  check_batch_norm_statistics(kOp, x_, shift_, running_mean, running_var);
  const std::optional<Tensor> none;
  const NormVectors affine{none, none, weight, bias};
  const BatchNormShape shape = check_batch_norm_apply(kOp, x_, affine, residual_, activation);

  // Allocate
  const Tensor x = dense(x_), y = torch::stable::new_empty(x_, shape_of(x_));
  const std::optional<Tensor> residual = dense(residual_), shift = dense(shift_);

  // Config
  const int vec = access_width(shape.dtype, shape.channels,
                               {x.const_data_ptr(), pointer(residual), y.const_data_ptr()});
  const std::optional<TrainPlan> plan = plan_for(shape, vec, 1, scope.facts());
  if (!plan) {
    return batch_norm_train_by_passes<batch_norm_statistics_, batch_norm_apply>(
        x, affine, residual, shift, running_mean, running_var, momentum, eps, activation);
  }
  const Tensor mean = torch::stable::new_empty(x, {shape.channels}, wide_dtype(x));
  const Tensor var = torch::stable::new_empty(x, {shape.channels}, wide_dtype(x));
  const Tensor partial = partial_sums(x, shape, *plan);
  const DenseNorm norm(affine);
  TrainProblem problem = problem_of(shape, *plan, norm, eps, activation, partial);
  problem.pass.x = x.const_data_ptr();
  problem.pass.added = pointer(residual);
  problem.pass.out = y.mutable_data_ptr();
  problem.statistics = statistics_result(mean, var, shift, running_mean, running_var, momentum);

  // Launch
  launch_problem<true>(problem, shape.dtype, scope.stream());

  // Launch check
  check_launch(kOp);
  return {y, mean, var};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_train_backward(
    const Tensor& dy_,                    // (..., C)
    const Tensor& x_,                     // (..., C)
    const Tensor& mean,                   // (C,)
    const Tensor& var,                    // (C,)
    const std::optional<Tensor>& weight,  // (C,)
    const std::optional<Tensor>& bias,    // (C,)
    const std::optional<Tensor>& saved_,  // (..., C)
    double eps, int64_t activation, bool need_dz) {
  constexpr const char* kOp = "batch_norm_train_backward";
  // Guard
  const LaunchScope scope(kOp, dy_);

  // Checks
  const std::optional<Tensor> given_mean = mean, given_var = var;
  const NormVectors vectors{given_mean, given_var, weight, bias};
  const BatchNormShape shape = check_batch_norm_backward(kOp, dy_, x_, vectors, saved_, activation);

  // Allocate
  const Tensor dy = dense(dy_), x = dense(x_);
  const Saved kept = saved_for_backward(static_cast<Activation>(activation));
  const std::optional<Tensor> saved = kept == Saved::kNothing ? std::nullopt : dense(saved_);
  const Tensor dx = torch::stable::new_empty(dy, shape_of(dy));
  const Tensor dz = torch::stable::new_empty(dy, need_dz ? shape_of(dy) : std::vector<int64_t>{0});

  // Config
  void* const dz_data = need_dz ? dz.mutable_data_ptr() : nullptr;
  const int vec = access_width(
      shape.dtype, shape.channels,
      {dy.const_data_ptr(), x.const_data_ptr(), pointer(saved), dx.const_data_ptr(), dz_data});
  // NOTE: what was saved is read once, with dz kept behind it.
  const bool fits = !saved || need_dz;
  const std::optional<TrainPlan> plan =
      fits ? plan_for(shape, vec, saved ? 3 : 2, scope.facts()) : std::nullopt;
  if (!plan) {
    return batch_norm_train_backward_by_passes<batch_norm_sums, batch_norm_backward>(
        dy, x, vectors, saved, eps, activation, need_dz);
  }
  const Tensor sums = torch::stable::new_empty(dy, {2, shape.channels}, wide_dtype(dy));
  const Tensor partial = partial_sums(dy, shape, *plan);
  const DenseNorm norm(vectors);
  TrainProblem problem = problem_of(shape, *plan, norm, eps, activation, partial);
  problem.sums = sums.mutable_data_ptr();
  problem.pass.dy = dy.const_data_ptr();
  problem.pass.x = x.const_data_ptr();
  problem.pass.added = pointer(saved);
  problem.pass.added_is_output = saved && kept == Saved::kOutput;
  problem.pass.out = dx.mutable_data_ptr();
  problem.pass.dz = dz_data;

  // Launch
  launch_problem<false>(problem, shape.dtype, scope.stream());

  // Launch check
  check_launch(kOp);
  return {dx, dz, sums};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("batch_norm_train_", FUSEDOPS_BOX(&batch_norm_train_));
  m.impl("batch_norm_train_backward", FUSEDOPS_BOX(&batch_norm_train_backward));
}

}  // namespace fusedops::cuda
