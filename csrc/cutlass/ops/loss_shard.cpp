// loss_shard_parts and loss_shard_gradient_ on CUDA: the loss where each rank has some of the
// classes.
#include <torch/csrc/stable/library.h>

#include "csrc/common/checks/loss_shard_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/aten.h"
#include "csrc/common/host/launch.h"
#include "csrc/cutlass/configs/alignment.h"
#include "csrc/cutlass/passes/loss_rows.h"

namespace fusedops {
namespace {

LossRowsProblem shard_problem(const char* op, const Tensor& logits, const Tensor& targets,
                              const LossShardShape& shape, const LossOptions& options) {
  FUSEDOPS_CHECK(aligned16(logits.const_data_ptr()), op,
                 ": logits must begin at a multiple of 16 bytes");
  LossRowsProblem rows{};
  rows.dtype = shape.dtype;
  rows.logits = logits.mutable_data_ptr();
  rows.rows = shape.rows;
  rows.n = shape.width;
  rows.pitch = shape.pitch;
  rows.target = static_cast<const int64_t*>(targets.const_data_ptr());
  rows.options = options;
  rows.first = shape.first;
  rows.classes = shape.classes;
  return rows;
}

void check_launched(const char* op, const char* failure) {
  FUSEDOPS_CHECK(failure == nullptr, op, ": the launch failed: ", failure);
}

Tensor loss_shard_parts(const Tensor& logits,  // (M, pitch)
                        const Tensor& target,  // (M,)
                        int64_t first, int64_t width, int64_t classes, int64_t ignore_index,
                        double softcap, bool smooth) {
  constexpr const char* kOp = "loss_shard_parts";
  // Guard
  const LaunchScope scope(kOp, logits);

  // Checks
  const LossOptions options{ignore_index, 0, softcap, 0};
  const LossShardShape shape =
      check_loss_shard(kOp, logits, target, first, width, classes, options);

  // Allocate
  const fusedops::cpu::NoGradGuard no_grad;
  const Tensor targets = dense(target);
  const Tensor x = dense(logits);
  const Tensor parts = new_dense(logits, {shape.rows, 4}, compute_type(shape.dtype));

  // Empty early return
  if (shape.rows == 0) return parts;

  // Launch
  LossRowsProblem rows = shard_problem(kOp, x, targets, shape, options);
  rows.parts = parts.mutable_data_ptr();
  check_launched(kOp, loss_parts(rows, smooth, scope.context()));

  // Launch check
  check_launch(kOp);
  return parts;
}

void loss_shard_gradient_(const Tensor& logits,  // (M, pitch)
                          const Tensor& target,  // (M,)
                          const Tensor& lse,     // (M,)
                          const Tensor& factor,  // (M,) or (1,)
                          int64_t first, int64_t width, int64_t classes, int64_t ignore_index,
                          double label_smoothing, double softcap, double z_loss) {
  constexpr const char* kOp = "loss_shard_gradient_";
  // Guard
  const LaunchScope scope(kOp, logits);

  // Checks
  const LossOptions options{ignore_index, label_smoothing, softcap, z_loss};
  const LossShardShape shape =
      check_loss_shard(kOp, logits, target, first, width, classes, options);
  const bool per_row = check_loss_shard_gradient(kOp, shape, logits, lse, factor);

  // Empty early return
  if (shape.rows == 0) return;

  // Launch
  const fusedops::cpu::NoGradGuard no_grad;
  const Tensor targets = dense(target);
  const Tensor sums = dense(lse), factors = dense(factor);
  LossRowsProblem rows = shard_problem(kOp, logits, targets, shape, options);
  rows.lse = sums.const_data_ptr();
  rows.factor = factors.const_data_ptr();
  rows.factor_per_row = per_row;
  check_launched(kOp, loss_gradient(rows, scope.context()));

  // Launch check
  check_launch(kOp);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("loss_shard_parts", FUSEDOPS_BOX(&loss_shard_parts));
  m.impl("loss_shard_gradient_", FUSEDOPS_BOX(&loss_shard_gradient_));
}

}  // namespace fusedops
