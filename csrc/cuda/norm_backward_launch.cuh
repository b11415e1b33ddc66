// From checked operands to the kernels of norm_backward.cuh, for one of the two norms.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <type_traits>

#include "common/device_types.cuh"
#include "common/dispatch.h"
#include "cuda/norm_backward.cuh"
#include "cuda/norm_backward.h"
#include "cuda/row_plan.h"

namespace fusedops::cuda {

inline constexpr int kLongPartials = 64;

template <class C, class Out>
void launch_partial_sum(const NormGradients& t, const Tensor& partial, int partials, int64_t n,
                        const LaunchScope& scope) {
  const auto out = [](Tensor* tensor) {
    return tensor == nullptr ? nullptr : static_cast<Out*>(tensor->mutable_data_ptr());
  };
  launch_plain(norm_partial_sum_kernel<C, Out>,
               dim3(ceil_div(n, kPartialX), t.dbias == nullptr ? 1 : 2), dim3(kPartialX, kPartialY),
               scope, static_cast<const C*>(partial.const_data_ptr()), out(t.dweight), out(t.dbias),
               partials, n);
}

template <class T>
void sum_partials(const NormGradients& t, const Tensor& partial, int partials, int64_t n,
                  const LaunchScope& scope) {
  using C = Compute<T>;
  const Tensor& like = t.dweight != nullptr ? *t.dweight : *t.dbias;
  if (sizeof(T) == 2 && like.scalar_type() == ScalarType::Float) {
    launch_partial_sum<C, float>(t, partial, partials, n, scope);
  } else {
    launch_partial_sum<C, T>(t, partial, partials, n, scope);
  }
}

template <bool kRms, class T, class W, class S>
void launch_long(NormBackward<T, W, S>& p, const NormShape& shape, const LaunchScope& scope) {
  if (p.dx != nullptr) {
    launch_plain(norm_backward_long_kernel<kRms, T, W, S>,
                 dim3(blocks_of_long_rows(shape.rows, scope)), dim3(kStreamThreads), scope, p,
                 shape.rows, shape.n);
  }
  if (p.partial != nullptr) {
    launch_plain(norm_partial_long_kernel<kRms, T, W, S>,
                 dim3(ceil_div(shape.n, kStreamThreads), p.partials), dim3(kStreamThreads), scope,
                 p, shape.rows, shape.n);
  }
}

template <bool kRms, class T, class W, class S, bool kRagged>
void launch_ragged(const NormGradients& t, const std::optional<Tensor>& weight,
                   const NormShape& shape, int64_t norm_dims, const LaunchScope& scope) {
  // Config
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
  const RowProblem problem{shape.rows,
                           shape.n,
                           kVec,
                           norm_backward_words<T, S>(t.dresidual.has_value()),
                           kNormBackwardChunks<kRms, T, W, kRagged>,
                           sizeof(C),
                           0,
                           kRms || kRagged};
  const auto kernel = norm_backward_kernel<kRms, T, W, S, kRagged>;
  const RowPlan plan = plan_rows(reinterpret_cast<const void*>(kernel), problem, scope);
  p.partials = plan.held ? static_cast<int>(plan.blocks / std::max(plan.layout.cluster, 1))
                         : static_cast<int>(std::min<int64_t>(shape.rows, kLongPartials));

  // Allocate
  const bool sums = t.dweight != nullptr || t.dbias != nullptr;
  const Tensor partial =
      torch::stable::new_empty(t.rstd, {sums ? (kRms ? 1 : 2) * int64_t{p.partials} * shape.n : 0});
  p.partial = sums ? static_cast<C*>(partial.mutable_data_ptr()) : nullptr;

  // Launch
  if (plan.held) {
    launch_rows(kernel, plan, scope, p, plan.layout);
  } else {
    launch_long<kRms>(p, shape, scope);
  }
  if (sums) sum_partials<T>(t, partial, p.partials, shape.n, scope);
}

template <bool kRms, class T, class W, class S>
void launch(const NormGradients& t, const std::optional<Tensor>& weight, const NormShape& shape,
            int64_t norm_dims, const LaunchScope& scope) {
  dispatch_ragged<T>(shape.n, [&]<bool kRagged>(Tag<kRagged>) {
    launch_ragged<kRms, T, W, S, kRagged>(t, weight, shape, norm_dims, scope);
  });
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
