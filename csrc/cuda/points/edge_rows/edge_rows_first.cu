// edge_rows_first and edge_rows_offsets on CUDA.
#include <torch/csrc/stable/library.h>

#include <tuple>
#include <utility>
#include <vector>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/points/edge_rows/edge_rows_check.h"
#include "csrc/cuda/points/edge_rows/edge_rows_first.cuh"
#include "csrc/cuda/points/edges/edge_tensors.h"

namespace fusedops::cuda {
namespace {

constexpr ScalarType kFp32 = ScalarType::Float;

// The edges of idx (B, M, K), contiguous; what `points` and `centers` point to outlives the launch.
struct CheckedEdges {
  Tensor idx;
  OptionalTensor points, centers;
  RowEdges edges;
};

CheckedEdges check_row_edges(const char* op, const Tensor& idx, const OptionalTensor& points,
                             const OptionalTensor& centers, int64_t n) {
  check_dim(op, "idx", idx, 3, "(B, M, K)");
  const int64_t clouds = idx.size(0), groups = idx.size(1), k = idx.size(2);
  CheckedEdges c{
      .idx = *check_edge_tensor(op, "idx", idx, idx, ScalarType::Long, {clouds, groups, k}),
      .points = check_edge_tensor(op, "points", points, idx, kFp32, {clouds, n, 3}),
      .centers = check_edge_tensor(op, "centers", centers, idx, kFp32, {clouds, groups, 3})};
  FUSEDOPS_CHECK(idx.numel() > 0 && idx.numel() <= INT32_MAX, op,
                 ": idx must have 1 to 2^31 - 1 entries; got ", shape_string(idx));
  FUSEDOPS_CHECK(clouds * n <= INT32_MAX, op, ": clouds must have up to 2^31 - 1 points; got ",
                 clouds * n);
  c.edges = {.idx = static_cast<const int64_t*>(c.idx.const_data_ptr()),
             .points = read<float>(c.points),
             .centers = read<float>(c.centers),
             .groups = SmallDivider(groups),
             .k = SmallDivider(k),
             .rows = static_cast<int>(idx.numel()),
             .n = static_cast<int>(n)};
  return c;
}

RowGrid edge_grid(int64_t rows, int64_t channels, const LaunchScope& scope) {
  return row_grid(ceil_div(rows, int64_t{kRowUnroll}), channels, 1, scope.facts().sm_count);
}

dim3 blocks_of(const RowGrid& grid) {
  return dim3(static_cast<unsigned>(grid.row_blocks * grid.col_blocks));
}

std::tuple<Tensor, Tensor> edge_rows_first(const OptionalTensor& rows_,
                                           const OptionalTensor& group_rows_,
                                           const OptionalTensor& offset_weight_,
                                           const OptionalTensor& points,
                                           const OptionalTensor& centers, const Tensor& idx,
                                           const Tensor& like, const OptionalTensor& stats_,
                                           double slope) {
  constexpr const char* kOp = "edge_rows_first";
  // Guard
  const LaunchScope scope(kOp, idx);

  // Checks
  FUSEDOPS_CHECK(offset_weight_.has_value() == points.has_value(), kOp,
                 ": offset_weight and points must come together");
  FUSEDOPS_CHECK(rows_ || points, kOp, ": rows or points must be given; got None for both");
  if (rows_) check_dim(kOp, "rows", *rows_, 3, "(B, N, C)");
  if (offset_weight_) check_dim(kOp, "offset_weight", *offset_weight_, 2, "(C, 3)");
  if (points) check_dim(kOp, "points", *points, 3, "(B, N, 3)");
  const int64_t channels = rows_ ? rows_->size(2) : offset_weight_->size(0);
  const int64_t n = rows_ ? rows_->size(1) : points->size(1);
  FUSEDOPS_CHECK(channels > 0 && channels % 8 == 0, kOp,
                 ": there must be a multiple of 8 channels; got ", channels);
  const CheckedEdges edges = check_row_edges(kOp, idx, points, centers, n);
  const int64_t clouds = idx.size(0), groups = idx.size(1);
  const auto fp32 = [&](const char* name, const OptionalTensor& tensor,
                        std::vector<int64_t> shape) {
    return check_edge_tensor(kOp, name, tensor, idx, kFp32, std::move(shape));
  };
  const OptionalTensor rows = fp32("rows", rows_, {clouds, n, channels});
  const OptionalTensor group_rows = fp32("group_rows", group_rows_, {clouds, groups, channels});
  const OptionalTensor weight = fp32("offset_weight", offset_weight_, {channels, 3});
  const OptionalTensor stats = fp32("stats", stats_, {kRowStatistics, channels});

  // Allocate
  const Tensor y = new_dense(idx, {idx.numel(), channels}, like.scalar_type());
  const Tensor valid = new_dense(idx, {idx.numel()}, ScalarType::Bool);

  // Config, launch
  const RowGrid grid = edge_grid(idx.numel(), channels, scope);
  dispatch_like(kOp, "like", like, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    const RowFirst<T> p{.edges = edges.edges,
                        .by_point = read<float>(rows),
                        .by_group = read<float>(group_rows),
                        .weight = read<float>(weight),
                        .stats = read<float>(stats),
                        .y = write<T>(y),
                        .valid = write<bool>(valid),
                        .channels = static_cast<int>(channels),
                        .slope = static_cast<float>(slope),
                        .grid = grid};
    const auto kernel =
        p.stats ? &edge_rows_first_kernel<T, true> : &edge_rows_first_kernel<T, false>;
    kernel<<<blocks_of(grid), dim3(kRowThreads), 0, scope.stream()>>>(p);
  });

  // Launch check
  check_launch(kOp);
  return {y, valid};
}

Tensor edge_rows_offsets(const Tensor& dy_, const Tensor& idx, const Tensor& points,
                         const OptionalTensor& centers) {
  constexpr const char* kOp = "edge_rows_offsets";
  // Guard
  const LaunchScope scope(kOp, dy_);

  // Checks
  const RowShape shape = check_edge_rows(kOp, "dy", dy_);
  check_dim(kOp, "points", points, 3, "(B, N, 3)");
  const CheckedEdges edges = check_row_edges(kOp, idx, points, centers, points.size(1));
  const Tensor dy =
      *check_edge_tensor(kOp, "dy", dy_, idx, dy_.scalar_type(), {idx.numel(), shape.channels});

  // Allocate
  const Tensor sums = new_dense(dy, {3, shape.channels}, kFp32);

  // Config, launch
  const RowGrid grid = edge_grid(shape.rows, shape.channels, scope);
  const Tensor partial = new_dense(dy, {grid.row_blocks, 3, shape.channels}, kFp32);
  dispatch_like(kOp, "dy", dy, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    const RowOffsets<T> p{.edges = edges.edges,
                          .dy = static_cast<const T*>(dy.const_data_ptr()),
                          .partial = write<float>(partial),
                          .channels = static_cast<int>(shape.channels),
                          .grid = grid};
    edge_rows_offsets_kernel<T><<<blocks_of(grid), dim3(kRowThreads), 0, scope.stream()>>>(p);
  });
  const int values = static_cast<int>(3 * shape.channels);
  const RowSums end{write<float>(partial), write<float>(sums), grid.row_blocks, values};
  edge_rows_finish_kernel<<<join_blocks(values), join_block(), 0, scope.stream()>>>(end);

  // Launch check
  check_launch(kOp);
  return sums;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("edge_rows_first", FUSEDOPS_BOX(&edge_rows_first));
  m.impl("edge_rows_offsets", FUSEDOPS_BOX(&edge_rows_offsets));
}

}  // namespace fusedops::cuda
