// edge_rows_statistics_ on CUDA.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/points/edge_rows/edge_rows_check.h"
#include "csrc/cuda/points/edge_rows/edge_rows_statistics.cuh"
#include "csrc/cuda/points/edges/edge_tensors.h"

namespace fusedops::cuda {
namespace {

// The vectors of a norm, (C,) in float32.
struct RowVectors {
  OptionalTensor weight, bias, shift, running_mean, running_var, share;
};

RowVectors check_vectors(const char* op, const RowVectors& v, const Tensor& y) {
  const auto vector = [&](const char* name, const OptionalTensor& tensor) {
    return check_edge_tensor(op, name, tensor, y, ScalarType::Float, {y.size(1)});
  };
  const auto written = [&](const char* name, const OptionalTensor& tensor) {
    vector(name, tensor);
    FUSEDOPS_CHECK(!tensor || tensor->is_contiguous(), op, ": ", name, " must be contiguous");
    return tensor;
  };
  FUSEDOPS_CHECK(v.running_mean.has_value() == v.running_var.has_value(), op,
                 ": running_mean and running_var must come together");
  return {vector("weight", v.weight),
          vector("bias", v.bias),
          vector("shift", v.shift),
          written("running_mean", v.running_mean),
          written("running_var", v.running_var),
          check_edge_tensor(op, "share", v.share, y, ScalarType::Float, {})};
}

template <class T>
void launch_rows(const RowStatistics<T>& p, bool pool, bool sums, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(p.grid.row_blocks * p.grid.col_blocks));
  const dim3 block(kRowThreads);
  if (pool && sums) {
    edge_rows_pool_kernel<T, true><<<grid, block, 0, stream>>>(p);
  } else if (pool) {
    edge_rows_pool_kernel<T, false><<<grid, block, 0, stream>>>(p);
  } else if (sums) {
    edge_rows_statistics_kernel<T><<<grid, block, 0, stream>>>(p);
  }
}

// How rows, or groups of k of them, are dealt out.
struct StatisticsPlan {
  bool pool;
  int64_t groups, channels;
  int k, split;
  RowGrid grid;

  // Behind the partial sums, which may be null.
  int* counts(float* sums) const {
    return sums == nullptr ? nullptr
                           : reinterpret_cast<int*>(sums + grid.row_blocks * 2 * channels);
  }
};

StatisticsPlan plan_statistics(const RowShape& shape, int64_t k, int sm_count) {
  const bool pool = k > 0;
  const int64_t groups = pool ? shape.rows / k : shape.rows;
  const int split = pool ? row_split(groups, k, shape.channels, sm_count) : 1;
  const int64_t items = pool ? groups : ceil_div(groups, int64_t{kRowUnroll});
  return {pool,           groups,
          shape.channels, static_cast<int>(pool ? k : 1),
          split,          row_grid(items, shape.channels, split, sm_count)};
}

// Sums of blocks where `sums` is not null, and the extrema of groups.
void launch_partials(const StatisticsPlan& plan, const Tensor& y, const OptionalTensor& valid,
                     const OptionalTensor& weight, float* sums, const Tensor& best,
                     const Tensor& which, cudaStream_t stream) {
  dispatch_like("edge_rows_statistics_", "y", y, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    const RowStatistics<T> p{.y = static_cast<const T*>(y.const_data_ptr()),
                             .valid = read<bool>(valid),
                             .weight = read<float>(weight),
                             .groups = plan.groups,
                             .k = plan.k,
                             .channels = static_cast<int>(plan.channels),
                             .split = plan.split,
                             .grid = plan.grid,
                             .partial = sums,
                             .counts = plan.counts(sums),
                             .best = plan.pool ? write<T>(best) : nullptr,
                             .which = plan.pool ? write<int>(which) : nullptr};
    launch_rows(p, plan.pool, sums != nullptr, stream);
  });
}

// Joins the partial sums; the statistics, and the running ones.
void launch_end(RowStatisticsEnd end, const RowVectors& v, cudaStream_t stream) {
  const auto running = [](const OptionalTensor& t) { return t ? write<float>(*t) : nullptr; };
  end.weight = read<float>(v.weight);
  end.bias = read<float>(v.bias);
  end.shift = read<float>(v.shift);
  end.running_mean = running(v.running_mean);
  end.running_var = running(v.running_var);
  end.share = read<float>(v.share);
  edge_rows_statistics_end_kernel<<<join_blocks(end.channels), join_block(), 0, stream>>>(end);
}

std::tuple<Tensor, Tensor, Tensor> edge_rows_statistics_(
    const Tensor& y_, const OptionalTensor& valid_, const OptionalTensor& weight,
    const OptionalTensor& bias, const OptionalTensor& shift, const OptionalTensor& running_mean,
    const OptionalTensor& running_var, const OptionalTensor& share, double momentum, double eps,
    bool batch, int64_t k) {
  constexpr const char* kOp = "edge_rows_statistics_";
  // Guard
  const LaunchScope scope(kOp, y_);

  // Checks
  const RowShape shape = check_edge_rows(kOp, "y", y_);
  const OptionalTensor valid = check_row_mask(kOp, valid_, y_);
  const RowVectors v =
      check_vectors(kOp, {weight, bias, shift, running_mean, running_var, share}, y_);
  FUSEDOPS_CHECK(k >= 0 && (k == 0 || shape.rows % k == 0), kOp,
                 ": k must be 0 or divide the rows of y; got ", k);
  const Tensor y = *check_edge_tensor(kOp, "y", y_, y_, y_.scalar_type(), {y_.size(0), y_.size(1)});

  // Allocate
  const bool pool = k > 0;
  const int64_t groups = pool ? shape.rows / k : shape.rows, channels = shape.channels;
  const Tensor stats = new_dense(y, {kRowStatistics, channels}, ScalarType::Float);
  const std::vector<int64_t> pooled =
      pool ? std::vector<int64_t>{groups, channels} : std::vector<int64_t>{0};
  const Tensor best = new_dense(y, pooled);
  const Tensor which = new_dense(y, pooled, ScalarType::Int);

  // Config
  const StatisticsPlan plan = plan_statistics(shape, k, scope.facts().sm_count);
  const Tensor partial =
      new_dense(y, {batch ? plan.grid.row_blocks * (2 * channels + 1) : 0}, ScalarType::Float);

  // Launch
  float* const sums = batch ? write<float>(partial) : nullptr;
  int* const counts = plan.counts(sums);
  launch_partials(plan, y, valid, v.weight, sums, best, which, scope.stream());
  launch_end({.partial = sums,
              .counts = counts,
              .row_blocks = plan.grid.row_blocks,
              .channels = static_cast<int>(channels),
              .rows = shape.rows,
              .momentum = static_cast<float>(momentum),
              .eps = static_cast<float>(eps),
              .stats = write<float>(stats)},
             v, scope.stream());

  // Launch check
  check_launch(kOp);
  return {stats, best, which};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("edge_rows_statistics_", FUSEDOPS_BOX(&edge_rows_statistics_));
}

}  // namespace fusedops::cuda
