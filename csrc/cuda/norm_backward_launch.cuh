// From checked operands to the kernels of norm_backward*.cuh, for one of the two norms.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "common/device_types.cuh"
#include "common/dispatch.h"
#include "cuda/norm_backward.h"
#include "cuda/norm_backward_cluster.cuh"
#include "cuda/norm_backward_split.cuh"
#include "cuda/row_plan.h"

namespace fusedops::cuda {

// Elements below which one launch that reads its input twice is sooner than two launches.
inline constexpr int64_t kSplitElements = 1 << 17;
inline constexpr int64_t kSplitPartials = 64, kSplitRows = 512;  // at most; of a partial row
// Rows that 32 bits count, some steps ahead.
inline constexpr int64_t kMostRows = (int64_t{1} << 32) - (1 << 24);

inline NormSums norm_sums(const NormGradients& t, bool half) {
  const auto out = [](Tensor* tensor) {
    return tensor == nullptr ? nullptr : tensor->mutable_data_ptr();
  };
  const Tensor* like = t.dweight != nullptr ? t.dweight : t.dbias;
  const bool wide = half && like != nullptr && like->scalar_type() == ScalarType::Float;
  return {out(t.dweight), out(t.dbias), wide};
}

template <class T>
void sum_partials(const NormSums& out, const Tensor& partial, int partials, int64_t n,
                  const LaunchScope& scope) {
  using C = Compute<T>;
  constexpr int kPer = 16 / sizeof(C);
  const int per = n % kPer == 0 ? kPer : 1;
  const dim3 threads =
      partials <= 64 ? dim3(32, kPartialThreads / 32) : dim3(8, kPartialThreads / 8);
  launch_plain(per == 1 ? norm_partial_sum_kernel<T, 1> : norm_partial_sum_kernel<T, kPer>,
               dim3(ceil_div(n, int64_t{threads.x} * per), out.dbias == nullptr ? 1 : 2), threads,
               scope, static_cast<const C*>(partial.const_data_ptr()), out, partials, n);
}

// Partial rows, or none where nobody asked for them.
template <bool kRms, class T, class W, class S>
Tensor make_partial(NormBackward<T, W, S>& p, const NormSums& out, const Tensor& like, int64_t n) {
  const bool sums = out.dweight != nullptr || out.dbias != nullptr;
  const Tensor partial =
      torch::stable::new_empty(like, {sums ? (kRms ? 1 : 2) * int64_t{p.partials} * n : 0});
  p.partial = sums ? static_cast<Compute<T>*>(partial.mutable_data_ptr()) : nullptr;
  return partial;
}

// Rows and columns apart.
template <bool kRms, class T, class W, class S>
void launch_split(const NormGradients& t, NormBackward<T, W, S>& p, const NormShape& shape,
                  const LaunchScope& scope) {
  const NormSums out = norm_sums(t, sizeof(T) == 2);
  const bool sums = out.dweight != nullptr || out.dbias != nullptr;
  p.partials = static_cast<int>(
      std::clamp<int64_t>(ceil_div(shape.rows, kSplitRows), 1, sums ? kSplitPartials : 1));
  const Tensor partial = make_partial<kRms>(p, out, t.rstd, p.partials > 1 ? shape.n : 0);
  const int64_t row_blocks = p.dx == nullptr ? 0 : blocks_of_long_rows(shape.rows, scope);
  const int64_t column_blocks = sums ? ceil_div(shape.n, int64_t{kSplitX}) * p.partials : 0;
  launch_plain(norm_backward_split_kernel<kRms, T, W, S>, dim3(row_blocks + column_blocks),
               dim3(kSplitThreads), scope, p, out, row_blocks, shape.rows, shape.n);
  if (p.partials > 1) sum_partials<T>(out, partial, p.partials, shape.n, scope);
}

// Whole rows on a plan, then the sums of what its teams have summed, `parts` times each.
template <bool kRms, class Kernel, class T, class W, class S, class... Args>
void launch_plan(Kernel kernel, const RowPlan& plan, int64_t parts, const NormGradients& t,
                 NormBackward<T, W, S>& p, const LaunchScope& scope, Args... args) {
  // Allocate
  p.partials = static_cast<int>(plan.blocks / std::max(plan.layout.cluster, 1) * parts);
  const NormSums out = norm_sums(t, sizeof(T) == 2);
  const Tensor partial = make_partial<kRms>(p, out, t.rstd, plan.layout.n);

  // Launch
  launch_rows(kernel, plan, scope, p, plan.layout, args...);
  if (p.partial != nullptr) sum_partials<T>(out, partial, p.partials, plan.layout.n, scope);
}

// A warp or a block for a row; false where that cannot be.
template <bool kRms, bool kRagged, class Step, class T, class W, class S>
bool launch_rows_of(const NormGradients& t, NormBackward<T, W, S>& p, const NormShape& shape,
                    const LaunchScope& scope) {
  // NOTE: measured; blocks of few warps.
  const bool many = kRms && kRagged && Step::kBlocks && shape.n <= 256 * kChunkOf<T>;
  const RowProblem problem{
      .rows = shape.rows,
      .n = shape.n,
      .vec = kChunkOf<T>,
      .words = norm_backward_words<T, S>(p.dresidual != nullptr),
      .max_chunks = Step::kChunks,
      .compute_bytes = sizeof(Compute<T>),
      .rows_per_team = 0,
      .bulk = kRagged,
      .sm_threads = many ? kRowThreads * 5 / 4 : kRowThreads,
      .whole = kRagged && Step::kBlocks,
  };
  const auto kernel = norm_backward_kernel<kRms, T, W, S, kRagged, Step>;
  const RowPlan plan = plan_rows(reinterpret_cast<const void*>(kernel), problem, scope);
  if (plan.held) launch_plan<kRms>(kernel, plan, 1, t, p, scope);
  return plan.held;
}

// A cluster for a row; false where that cannot be.
template <bool kRms, bool kRagged, class T, class W, class S>
bool launch_clusters(const NormGradients& t, NormBackward<T, W, S>& p, const NormShape& shape,
                     const LaunchScope& scope) {
  constexpr int kVec = kChunkOf<T>;
  const RowProblem problem{
      .rows = shape.rows,
      .n = shape.n,
      .vec = kVec,
      .words = norm_backward_words<T, S>(p.dresidual != nullptr),
      .max_chunks = ClusterStep::kChunks,
      .compute_bytes = sizeof(Compute<T>),
      .rows_per_team = 0,
      .bulk = true,
      .stages = kClusterStages,
      .extra_bytes = kClusterBarrierBytes,
      .whole = true,
      .clusters = true,
  };
  const auto kernel = norm_backward_cluster_kernel<kRms, T, W, S, kRagged>;
  const RowPlan plan = plan_rows(reinterpret_cast<const void*>(kernel), problem, scope);
  if (!plan.held) return false;
  // Of the rows of a team, which lie in so many classes at the most.
  const int period = static_cast<int>(kVec / std::gcd<int64_t>(shape.n, kVec));
  const int64_t longest = ceil_div(shape.rows, plan.blocks / plan.layout.cluster);
  const int64_t parts = std::min<int64_t>(
      period, 1 + ceil_div(longest - 1, std::max<int64_t>(shape.rows / period, 1)));
  launch_plan<kRms>(kernel, plan, parts, t, p, scope, period);
  return true;
}

template <bool kRms, bool kRagged, class T, class W, class S>
bool launch_held(const NormGradients& t, NormBackward<T, W, S>& p, const NormShape& shape,
                 const LaunchScope& scope) {
  if (row_chunks(shape.n, kChunkOf<T>) <= 32 * WarpStep::kChunks) {
    return launch_rows_of<kRms, kRagged, WarpStep>(t, p, shape, scope);
  }
  if (shape.n / kChunkOf<T> > kRowThreads * BlockStep::kChunks) {
    return launch_clusters<kRms, kRagged>(t, p, shape, scope);
  }
  return launch_rows_of<kRms, kRagged, BlockStep>(t, p, shape, scope);
}

template <bool kRms, class T, class W, class S>
void launch(const NormGradients& t, const std::optional<Tensor>& weight, const NormShape& shape,
            int64_t norm_dims, const LaunchScope& scope) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>;
  const RowInput dy = row_input(t.dy, shape.n, norm_dims, kVec);
  const RowInput x = row_input(t.x, shape.n, norm_dims, kVec);
  const RowInput dresidual = t.dresidual ? row_input(*t.dresidual, shape.n, norm_dims, kVec) : x;
  NormBackward<T, W, S> p{};
  p.dy = dy.as<S>();
  p.x = x.as<T>();
  p.dresidual = t.dresidual ? dresidual.as<T>() : nullptr;
  p.dy_stride = dy.stride;
  p.x_stride = x.stride;
  p.dresidual_stride = dresidual.stride;
  p.weight = weight ? static_cast<const W*>(weight->const_data_ptr()) : nullptr;
  p.mean = t.mean == nullptr ? nullptr : static_cast<const C*>(t.mean->const_data_ptr());
  p.rstd = static_cast<const C*>(t.rstd.const_data_ptr());
  p.dx = t.dx == nullptr ? nullptr : static_cast<T*>(t.dx->mutable_data_ptr());
  const bool small = shape.rows * shape.n <= kSplitElements && shape.rows <= kSplitRows;
  if (!small && shape.rows < kMostRows && shape.n < (int64_t{1} << 30)) {
    bool held = false;
    dispatch_ragged<T>(shape.n, [&]<bool kRagged>(Tag<kRagged>) {
      held = launch_held<kRms, kRagged>(t, p, shape, scope);
    });
    if (held) return;
  }
  launch_split<kRms>(t, p, shape, scope);
}

// Which instance: dtypes of x, weight and dy. A float32 dy beside a half x goes with float32
// weights.
template <bool kRms>
void norm_gradients(const NormGradients& t, const NormShape& shape, int64_t norm_dims,
                    const LaunchScope& scope) {
  const ScalarType dtype = t.x.scalar_type();
  const bool wide_dy = t.dy.scalar_type() != dtype;
  const bool wide_weight = t.weight && t.weight->scalar_type() != dtype;
  const std::optional<Tensor> weight =
      t.weight && wide_dy && !wide_weight
          ? std::optional(torch::stable::to(*t.weight, ScalarType::Float))
          : t.weight;
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    if constexpr (sizeof(T) == 2) {
      if (wide_dy) return launch<kRms, T, float, float>(t, weight, shape, norm_dims, scope);
      if (wide_weight) return launch<kRms, T, float, T>(t, weight, shape, norm_dims, scope);
    }
    launch<kRms, T, T, T>(t, weight, shape, norm_dims, scope);
  });
}

}  // namespace fusedops::cuda
