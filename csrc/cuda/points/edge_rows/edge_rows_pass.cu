// edge_rows_apply, edge_rows_sums and edge_rows_backward on CUDA.
#include <torch/csrc/stable/library.h>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/points/edge_rows/edge_rows_check.h"
#include "csrc/cuda/points/edge_rows/edge_rows_pass.cuh"
#include "csrc/cuda/points/edges/edge_tensors.h"

namespace fusedops::cuda {
namespace {

Tensor check_rows_like(const char* op, const char* name, const Tensor& tensor, const Tensor& like,
                       int64_t rows) {
  return *check_edge_tensor(op, name, tensor, like, like.scalar_type(), {rows, like.size(1)});
}

OptionalTensor check_places(const char* op, const OptionalTensor& which, const Tensor& like,
                            int64_t rows) {
  return check_edge_tensor(op, "which", which, like, ScalarType::Int, {rows, like.size(1)});
}

// Blocks of a pass over rows: enough, as each has a few at a time.
RowGrid pass_grid(const RowShape& shape, const LaunchScope& scope) {
  const int64_t items = ceil_div(shape.rows, int64_t{kRowUnroll});
  return row_grid(items, shape.channels, 1, scope.facts().sm_count);
}

dim3 blocks_of(const RowGrid& grid) {
  return dim3(static_cast<unsigned>(grid.row_blocks * grid.col_blocks));
}

Tensor edge_rows_apply(const Tensor& y_, const Tensor& stats_, const OptionalTensor& which_,
                       const OptionalTensor& valid_, double slope) {
  constexpr const char* kOp = "edge_rows_apply";
  // Guard
  const LaunchScope scope(kOp, y_);

  // Checks
  const RowShape shape = check_edge_rows(kOp, "y", y_);
  const Tensor y = check_rows_like(kOp, "y", y_, y_, shape.rows);
  const Tensor stats = check_row_statistics(kOp, stats_, y_);
  const OptionalTensor which = check_places(kOp, which_, y_, shape.rows);
  const OptionalTensor valid = check_row_mask(kOp, valid_, y_);

  // Allocate
  const Tensor out = new_dense(y, {shape.rows, shape.channels});

  // Config, launch
  const RowGrid grid = pass_grid(shape, scope);
  dispatch_like(kOp, "y", y, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    RowPass<T> p{};
    p.y = static_cast<const T*>(y.const_data_ptr());
    p.which = read<int>(which);
    p.valid = read<bool>(valid);
    p.stats = static_cast<const float*>(stats.const_data_ptr());
    p.out = write<T>(out);
    p.rows = shape.rows;
    p.channels = static_cast<int>(shape.channels);
    p.slope = static_cast<float>(slope);
    p.grid = grid;
    edge_rows_apply_kernel<T><<<blocks_of(grid), dim3(kRowThreads), 0, scope.stream()>>>(p);
  });

  // Launch check
  check_launch(kOp);
  return out;
}

Tensor edge_rows_sums(const Tensor& da_, const Tensor& y_, const Tensor& stats_,
                      const OptionalTensor& which_, const OptionalTensor& valid_, double slope) {
  constexpr const char* kOp = "edge_rows_sums";
  // Guard
  const LaunchScope scope(kOp, y_);

  // Checks
  const RowShape shape = check_edge_rows(kOp, "y", y_);
  const Tensor y = check_rows_like(kOp, "y", y_, y_, shape.rows);
  const Tensor da = check_rows_like(kOp, "da", da_, y_, shape.rows);
  const Tensor stats = check_row_statistics(kOp, stats_, y_);
  const OptionalTensor which = check_places(kOp, which_, y_, shape.rows);
  const OptionalTensor valid = check_row_mask(kOp, valid_, y_);

  // Allocate
  const Tensor sums = new_dense(y, {2, shape.channels}, ScalarType::Float);

  // Config, launch
  const RowGrid grid = pass_grid(shape, scope);
  const Tensor partial = new_dense(y, {grid.row_blocks, 2, shape.channels}, ScalarType::Float);
  dispatch_like(kOp, "y", y, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    RowPass<T> p{};
    p.da = static_cast<const T*>(da.const_data_ptr());
    p.y = static_cast<const T*>(y.const_data_ptr());
    p.which = read<int>(which);
    p.valid = read<bool>(valid);
    p.stats = static_cast<const float*>(stats.const_data_ptr());
    p.partial = write<float>(partial);
    p.rows = shape.rows;
    p.channels = static_cast<int>(shape.channels);
    p.slope = static_cast<float>(slope);
    p.grid = grid;
    edge_rows_sums_kernel<T><<<blocks_of(grid), dim3(kRowThreads), 0, scope.stream()>>>(p);
  });
  const int values = static_cast<int>(2 * shape.channels);
  const RowSums end{write<float>(partial), write<float>(sums), grid.row_blocks, values};
  edge_rows_finish_kernel<<<join_blocks(values), join_block(), 0, scope.stream()>>>(end);

  // Launch check
  check_launch(kOp);
  return sums;
}

struct BackwardOperands {
  Tensor da, y, stats;
  OptionalTensor sums, best, which, valid;
};

// One pass: dense rows of da, or a row a group whose winners `which` names.
void launch_backward(const BackwardOperands& o, const RowShape& shape, int64_t groups, double slope,
                     const Tensor& dy, const LaunchScope& scope) {
  const int64_t k = shape.rows / groups;
  const int sm_count = scope.facts().sm_count;
  const int split = o.which ? row_split(groups, k, shape.channels, sm_count) : 1;
  const RowGrid grid =
      o.which ? row_grid(groups, shape.channels, split, sm_count) : pass_grid(shape, scope);
  dispatch_like("edge_rows_backward", "y", o.y, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    RowPass<T> p{};
    p.da = static_cast<const T*>(o.da.const_data_ptr());
    p.y = static_cast<const T*>(o.y.const_data_ptr());
    p.best = read<T>(o.best);
    p.which = read<int>(o.which);
    p.valid = read<bool>(o.valid);
    p.stats = static_cast<const float*>(o.stats.const_data_ptr());
    p.sums = read<float>(o.sums);
    p.out = write<T>(dy);
    p.rows = groups;
    p.k = static_cast<int>(k);
    p.channels = static_cast<int>(shape.channels);
    p.split = split;
    p.slope = static_cast<float>(slope);
    p.grid = grid;
    if (o.which) {
      edge_rows_pool_backward_kernel<T>
          <<<blocks_of(grid), dim3(kRowThreads), 0, scope.stream()>>>(p);
    } else {
      edge_rows_backward_kernel<T><<<blocks_of(grid), dim3(kRowThreads), 0, scope.stream()>>>(p);
    }
  });
}

Tensor edge_rows_backward(const Tensor& da_, const Tensor& y_, const Tensor& stats_,
                          const OptionalTensor& sums_, const OptionalTensor& best_,
                          const OptionalTensor& which_, const OptionalTensor& valid_,
                          double slope) {
  constexpr const char* kOp = "edge_rows_backward";
  // Guard
  const LaunchScope scope(kOp, y_);

  // Checks
  const RowShape shape = check_edge_rows(kOp, "y", y_);
  FUSEDOPS_CHECK(best_.has_value() == which_.has_value(), kOp,
                 ": best and which must come together");
  check_edge_rows(kOp, "da", da_);
  const int64_t groups = which_ ? da_.size(0) : shape.rows;
  FUSEDOPS_CHECK(shape.rows % groups == 0, kOp, ": da must have a row a group; got ",
                 shape_string(da_), " for y ", shape_string(y_));
  const BackwardOperands operands{
      .da = check_rows_like(kOp, "da", da_, y_, groups),
      .y = check_rows_like(kOp, "y", y_, y_, shape.rows),
      .stats = check_row_statistics(kOp, stats_, y_),
      .sums = check_edge_tensor(kOp, "sums", sums_, y_, ScalarType::Float, {2, shape.channels}),
      .best = check_edge_tensor(kOp, "best", best_, y_, y_.scalar_type(), {groups, shape.channels}),
      .which = check_places(kOp, which_, y_, groups),
      .valid = check_row_mask(kOp, valid_, y_)};

  // Allocate
  const Tensor dy = new_dense(operands.y, {shape.rows, shape.channels});

  // Config, launch
  launch_backward(operands, shape, groups, slope, dy, scope);

  // Launch check
  check_launch(kOp);
  return dy;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("edge_rows_apply", FUSEDOPS_BOX(&edge_rows_apply));
  m.impl("edge_rows_sums", FUSEDOPS_BOX(&edge_rows_sums));
  m.impl("edge_rows_backward", FUSEDOPS_BOX(&edge_rows_backward));
}

}  // namespace fusedops::cuda
