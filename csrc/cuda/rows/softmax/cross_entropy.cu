// cross_entropy and its gradient on CUDA.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <bit>
#include <tuple>
#include <type_traits>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/checks/row_check.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/rows/softmax/cross_entropy_backward.cuh"
#include "csrc/cuda/rows/team/row_plan.h"

namespace fusedops::cuda {
namespace {

// Teams for rows that are read in a loop: lanes of a warp, or a block. Few long rows are shared by
// several blocks.
struct LoopPlan {
  RowLayout layout{};
  int64_t blocks = 0;
  int threads = 0, shares = 1;

  dim3 grid() const { return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(shares)); }
};

// per_lane: chunks of the longest row that a warp reads alone.
LoopPlan plan_loop(int64_t rows, int64_t n, int vec, int per_lane, const LaunchScope& scope) {
  LoopPlan plan;
  const int64_t sm_count = scope.facts().sm_count;
  const int64_t chunks = ceil_div(n, vec) + 1;
  const int per_thread = rows * chunks <= sm_count * 1024 ? 1 : kRowChunks;
  if (chunks <= 32 * per_lane) {
    int lanes = 2;  // what lies before the row is in a thread's first chunk
    while (lanes < 32 && lanes * per_thread < chunks) lanes *= 2;
    plan.threads = 128;
    plan.layout = {rows, 0, lanes, 0, kRowChunks};
    plan.blocks = ceil_div(rows, plan.threads / lanes);
  } else {
    constexpr int64_t kLeast = 128;  // chunks of a share
    while (plan.shares < kMostShares && rows * plan.shares <= sm_count &&
           chunks >= 2 * plan.shares * kLeast) {
      plan.shares *= 2;
    }
    plan.threads = static_cast<int>(std::min<int64_t>(
        kLossTeam, round_up(ceil_div(chunks, plan.shares * per_thread), int64_t{32})));
    plan.layout = {rows, 0, 32, 1, kRowChunks};
    plan.blocks = rows;
  }
  plan.blocks = std::min(plan.blocks, kMostLossSums);
  return plan;
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
  const bool mean = shape.reduction == Reduction::kMean;
  // NOTE: warps do not wait for each other where they are enough to fill the GPU.
  const int per_lane = kRowChunks * (shape.rows >= int64_t{32} * scope.facts().sm_count ? 8 : 2);
  const LoopPlan plan = plan_loop(shape.rows, shape.n, kChunkOf<T>, per_lane, scope);
  const bool shared = plan.shares > 1;
  const int64_t count = shape.rows <= kMostLossSums ? shape.rows : plan.blocks;  // of sums
  const int64_t bytes = shared ? shape.rows * plan.shares * int64_t{sizeof(LogitPart<C>)}
                               : count * int64_t{sizeof(LossSum)};
  const Tensor workspace = new_dense(x.tensor, {shared || !per_row ? bytes : 0}, ScalarType::Byte);
  auto* const parts = static_cast<LogitPart<C>*>(workspace.mutable_data_ptr());
  auto* const sums = static_cast<LossSum*>(workspace.mutable_data_ptr());
  O* const out = static_cast<O*>(loss.mutable_data_ptr());
  const LossOut<O, C> all{out, mean ? static_cast<C*>(scale.mutable_data_ptr()) : nullptr, mean};
  if (shape.rows > 0) {
    dispatch_bool(plan.layout.cluster == 0, [&]<bool kInWarp>(Tag<kInWarp>) {
      launch_plain(cross_entropy_kernel<T, O, kInWarp>, plan.grid(), dim3(plan.threads), scope, p,
                   per_row ? out : nullptr, shared || per_row ? nullptr : sums, parts, shape.rows,
                   shape.n, plan.layout.lanes);
    });
  }
  const auto block = [](int64_t threads) {
    return dim3(static_cast<unsigned>(
        std::clamp<int64_t>(round_up(threads, int64_t{32}), 32, kLossThreads)));
  };
  if (shared) {
    launch_plain(cross_entropy_join_kernel<T, O>, dim3(1), block(shape.rows * 32), scope, p, parts,
                 plan.shares, shape.rows, shape.n, per_row ? out : nullptr, all);
  } else if (!per_row) {
    launch_plain(cross_entropy_sum_kernel<O, C>, dim3(1), block(count), scope, sums, count, all);
  }
}

// Rows of the gradient are padded to whole chunks where those of the logits are long odd halves:
// the products behind it read such rows as they are, and would copy dense ones. The fake op
// (python/fusedops/_fakes/rows.py) says the same.
int64_t gradient_pitch(int64_t n, ScalarType dtype) {
  constexpr int64_t kLongRow = 2048;
  const bool half = dtype == ScalarType::Half || dtype == ScalarType::BFloat16;
  return half && n >= kLongRow ? round_up(n, int64_t{kChunkOf<uint16_t>}) : n;
}

// dx: [rows, n], rows dx_stride apart: n, or gradient_pitch.
template <class T, class O>
void launch_backward(const CrossEntropy<T>& p, const CrossEntropyShape& shape, const O* dloss,
                     const Compute<T>* scale, T* dx, int64_t dx_stride, const LaunchScope& scope) {
  constexpr int kVec = kChunkOf<T>;
  const int64_t chunks = ceil_div(shape.n, int64_t{kVec});
  const bool few = shape.rows * chunks <= int64_t{scope.facts().sm_count} * 1024;
  dispatch_bool(few, [&]<bool kFew>(Tag<kFew>) {
    constexpr int kChunks = kFew ? 1 : kRowChunks;
    dispatch_bool(chunks <= 32 * kChunks, [&]<bool kInWarp>(Tag<kInWarp>) {
      const uint64_t per_row = ceil_div(chunks, int64_t{kChunks});
      const int lanes = kInWarp ? static_cast<int>(std::bit_ceil(per_row)) : 0;
      const int64_t tiles = kInWarp ? 1 : ceil_div(chunks, int64_t{kTileThreads} * kChunks);
      const int64_t blocks =
          kInWarp ? ceil_div(shape.rows, int64_t{kTileThreads / lanes}) : shape.rows * tiles;
      const auto launch = [&](auto* kernel) {
        launch_plain(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kTileThreads), scope, p,
                     dloss, scale, shape.reduction == Reduction::kNone, dx, dx_stride, shape.rows,
                     shape.n, lanes, static_cast<unsigned>(tiles));
      };
      if constexpr (sizeof(T) == 2 && !kInWarp) {
        if (dx_stride != shape.n) {
          return launch(cross_entropy_backward_kernel<T, O, kChunks, false, true>);
        }
      }
      launch(cross_entropy_backward_kernel<T, O, kChunks, kInWarp, false>);
    });
  });
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
  const Tensor targets = dense(target);

  // Allocate
  const bool per_row = shape.reduction == Reduction::kNone;
  const ScalarType dtype = fp32_out ? ScalarType::Float : logits.scalar_type();
  const ScalarType compute = compute_type(shape.dtype);
  const Tensor loss =
      per_row ? new_dense(logits, {shape.rows}, dtype) : new_dense(logits, {}, dtype);
  const Tensor lse = new_dense(logits, {shape.rows}, compute);
  const Tensor scale = new_dense(logits, {shape.reduction == Reduction::kMean ? 1 : 0}, compute);

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
  const Tensor targets = dense(target);
  const Tensor grad = dense(dloss);
  const Tensor lse_dense = dense(lse);

  // Allocate
  const int64_t pitch = gradient_pitch(shape.n, logits.scalar_type());
  Tensor dx = new_dense(logits, {shape.rows, pitch});
  if (pitch != shape.n) dx = torch::stable::narrow(dx, 1, 0, shape.n);

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
      launch_backward<T, O>(operands<T>(x, targets, lse_dense, ignore_index, label_smoothing),
                            shape, static_cast<const O*>(grad.const_data_ptr()),
                            mean ? static_cast<const C*>(scale.const_data_ptr()) : nullptr,
                            static_cast<T*>(dx.mutable_data_ptr()), pitch, scope);
    });
  });

  // Launch check
  check_launch("cross_entropy_backward");
  return dx;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("cross_entropy", FUSEDOPS_BOX(&cross_entropy));
  m.impl("cross_entropy_backward", FUSEDOPS_BOX(&cross_entropy_backward));
}

}  // namespace fusedops::cuda
