// cross_entropy and its gradient on CUDA.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <tuple>
#include <type_traits>

#include "common/device_types.cuh"
#include "common/dispatch.h"
#include "common/row_check.h"
#include "cuda/cross_entropy.cuh"
#include "cuda/row_plan.h"

namespace fusedops::cuda {
namespace {

// Teams for rows that are read in a loop: lanes of a warp, or a block.
RowPlan plan_loop(int64_t rows, int64_t n, int vec) {
  RowPlan plan;
  const int64_t chunks = ceil_div(n, vec) + 1;
  int lanes = 2;  // what lies before the row is in a thread's first chunk
  while (lanes < 32 && lanes * kRowChunks < chunks) lanes *= 2;
  const bool in_warp = chunks <= 32 * kRowChunks * 2;
  plan.threads = in_warp ? 128
                         : static_cast<int>(std::min<int64_t>(
                               kStreamThreads, round_up(ceil_div(chunks, kRowChunks), 32)));
  plan.layout = {rows, 0, in_warp ? lanes : 32, in_warp ? 0 : 1, kRowChunks};
  plan.blocks = in_warp ? ceil_div(rows, plan.threads / lanes) : rows;
  return plan;
}

// Of the forward: a block that stays walks over its rows, with the next ones on their way.
template <class T>
RowPlan plan_forward(const void* kernel, int64_t rows, int64_t n, const LaunchScope& scope) {
  RowPlan plan = plan_loop(rows, n, kChunkOf<T>);
  plan.shared_bytes = row_slot_bytes<Compute<T>>(plan.layout.cluster, plan.threads) +
                      int64_t{kRowStages} * kRowChunks * plan.threads * 16;
  plan.blocks = std::min<int64_t>(plan.blocks, resident_blocks(kernel, plan, scope));
  return plan;
}

int64_t teams_of(const RowPlan& plan) {
  return plan.layout.cluster == 0 ? plan.blocks * (plan.threads / plan.layout.lanes) : plan.blocks;
}

template <class T>
CrossEntropy<T> operands(const RowInput& x, const Tensor& target, const Tensor& lse,
                         int64_t ignore_index, double label_smoothing) {
  return {x.as<T>(),
          static_cast<const int64_t*>(target.const_data_ptr()),
          static_cast<Compute<T>*>(const_cast<void*>(lse.const_data_ptr())),
          x.stride,
          ignore_index,
          static_cast<Compute<T>>(label_smoothing)};
}

template <class T, class O>
void launch_forward(const RowInput& x, const CrossEntropy<T>& p, const CrossEntropyShape& shape,
                    const Tensor& loss, const Tensor& scale, const LaunchScope& scope) {
  using C = Compute<T>;
  const bool per_row = shape.reduction == Reduction::kNone;
  const auto kernel = cross_entropy_kernel<T, O>;
  const RowPlan plan =
      plan_forward<T>(reinterpret_cast<const void*>(kernel), shape.rows, shape.n, scope);
  const int64_t teams = per_row || shape.rows == 0 ? 0 : teams_of(plan);
  const Tensor workspace =
      torch::stable::new_empty(x.tensor, {teams * int64_t{sizeof(LossSum)}}, ScalarType::Byte);
  O* const out = static_cast<O*>(loss.mutable_data_ptr());
  LossSum* const sums = per_row ? nullptr : static_cast<LossSum*>(workspace.mutable_data_ptr());
  if (shape.rows > 0) {
    launch_rows(kernel, plan, scope, p, per_row ? out : nullptr, sums, plan.layout, shape.n);
  }
  if (per_row) return;
  const bool mean = shape.reduction == Reduction::kMean;
  launch_plain(cross_entropy_sum_kernel<C, O>, dim3(1), dim3(kLossThreads), scope, sums, teams,
               mean, out, mean ? static_cast<C*>(scale.mutable_data_ptr()) : nullptr);
}

std::tuple<Tensor, Tensor, Tensor> cross_entropy(const Tensor& logits,  // (M, V)
                                                 const Tensor& target,  // (M,)
                                                 int64_t ignore_index, double label_smoothing,
                                                 int64_t reduction, bool fp32_out) {
  // Guard
  const LaunchScope scope("cross_entropy", logits);

  // Contract and checks
  const CrossEntropyShape shape =
      check_cross_entropy("cross_entropy", logits, target, label_smoothing, reduction, fp32_out);
  const Tensor targets = torch::stable::contiguous(target);

  // Allocate
  const bool per_row = shape.reduction == Reduction::kNone;
  const ScalarType dtype = fp32_out ? ScalarType::Float : logits.scalar_type();
  const ScalarType compute = compute_type(shape.dtype);
  const Tensor loss = per_row ? torch::stable::new_empty(logits, {shape.rows}, dtype)
                              : torch::stable::new_empty(logits, {}, dtype);
  const Tensor lse = torch::stable::new_empty(logits, {shape.rows}, compute);
  const Tensor scale =
      torch::stable::new_empty(logits, {shape.reduction == Reduction::kMean ? 1 : 0}, compute);

  // Empty early return
  if (per_row && shape.rows == 0) return {loss, lse, scale};

  // Config, launch
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    dispatch_bool(fp32_out, [&]<bool kWide>(Tag<kWide>) {
      using T = DeviceType<D>;
      using O = std::conditional_t<kWide && sizeof(T) == 2, float, T>;
      const RowInput x = row_input(logits, shape.n, 1, kChunkOf<T>);
      launch_forward<T, O>(x, operands<T>(x, targets, lse, ignore_index, label_smoothing), shape,
                           loss, scale, scope);
    });
  });

  // Launch check
  check_launch("cross_entropy");
  return {loss, lse, scale};
}

Tensor cross_entropy_backward(const Tensor& dloss,   // (M,) or ()
                              const Tensor& logits,  // (M, V)
                              const Tensor& target,  // (M,)
                              const Tensor& lse,     // (M,)
                              const Tensor& scale,   // (1,) or (0,)
                              int64_t ignore_index, double label_smoothing, int64_t reduction) {
  // Guard
  const LaunchScope scope("cross_entropy_backward", dloss);

  // Contract and checks
  const CrossEntropyShape shape = check_cross_entropy_backward(
      "cross_entropy_backward", dloss, logits, target, lse, scale, label_smoothing, reduction);
  const Tensor targets = torch::stable::contiguous(target);
  const Tensor grad = torch::stable::contiguous(dloss);
  const Tensor lse_dense = torch::stable::contiguous(lse);

  // Allocate
  const Tensor dx = torch::stable::new_empty(logits, logits.sizes());

  // Empty early return
  if (shape.rows == 0) return dx;

  // Config, launch
  const bool wide = dloss.scalar_type() != logits.scalar_type();
  const bool mean = shape.reduction == Reduction::kMean;
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    dispatch_bool(wide, [&]<bool kWide>(Tag<kWide>) {
      using T = DeviceType<D>;
      using O = std::conditional_t<kWide && sizeof(T) == 2, float, T>;
      using C = Compute<T>;
      const RowInput x = row_input(logits, shape.n, 1, kChunkOf<T>);
      const RowPlan plan = plan_loop(shape.rows, shape.n, kChunkOf<T>);
      launch_rows(cross_entropy_backward_kernel<T, O>, plan, scope,
                  operands<T>(x, targets, lse_dense, ignore_index, label_smoothing),
                  static_cast<const O*>(grad.const_data_ptr()),
                  mean ? static_cast<const C*>(scale.const_data_ptr()) : nullptr,
                  shape.reduction == Reduction::kNone, static_cast<T*>(dx.mutable_data_ptr()),
                  plan.layout, shape.n);
    });
  });

  // Launch check
  check_launch("cross_entropy_backward");
  return dx;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("cross_entropy", TORCH_BOX(&cross_entropy));
  m.impl("cross_entropy_backward", TORCH_BOX(&cross_entropy_backward));
}

}  // namespace fusedops::cuda
