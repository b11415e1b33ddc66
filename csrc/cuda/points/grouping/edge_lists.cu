// Lists of the edges to every point, and sums by them, on CUDA: an index is inverted once for all
// sums of a layer over edges.
#include <torch/csrc/stable/library.h>

#include <initializer_list>
#include <tuple>

#include "csrc/common/checks/cloud_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/cuda/points/grouping/scatter_rows.h"

namespace fusedops::cuda {
namespace {

std::tuple<Tensor, Tensor> edge_lists(const Tensor& idx,  // (B, M, K)
                                      int64_t n) {
  constexpr const char* kOp = "edge_lists";
  // Guard
  const LaunchScope scope(kOp, idx);

  // Checks
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  check_dim(kOp, "idx", idx, 3, "(B, M, K)");
  FUSEDOPS_CHECK(idx.scalar_type() == ScalarType::Long, kOp, ": idx must be int64; got ",
                 dtype_name(idx.scalar_type()));
  FUSEDOPS_CHECK(idx.numel() > 0 && idx.numel() <= kMost, kOp, ": idx must have from 1 to ", kMost,
                 " entries; got ", idx.numel());
  const int64_t clouds = idx.size(0);
  FUSEDOPS_CHECK(n > 0 && n <= kMost / clouds, kOp, ": the clouds must have from 1 to ", kMost,
                 " points together; got ", clouds, " of ", n);
  const Tensor places = dense(idx);

  // Allocate, launch
  const InvertedTensors lists{new_dense(idx, {idx.numel()}, ScalarType::Int),
                              new_dense(idx, {clouds * n, 2}, ScalarType::Int)};
  invert_index(kOp, scope, places, clouds, n, &lists);
  return {lists.entries, lists.ranges};
}

void check_lists(const char* op, const Tensor& rows, const Tensor& entries, const Tensor& ranges) {
  check_floating(op, "rows", rows);
  FUSEDOPS_CHECK(entries.scalar_type() == ScalarType::Int && entries.dim() == 1 &&
                     ranges.scalar_type() == ScalarType::Int && ranges.dim() == 2 &&
                     ranges.size(1) == 2,
                 op, ": entries and ranges must be what edge_lists gives; got shapes ",
                 shape_string(entries), " and ", shape_string(ranges));
}

void check_devices(const char* op, const Tensor& rows,
                   std::initializer_list<const Tensor*> others) {
  for (const Tensor* t : others) {
    FUSEDOPS_CHECK(same_device(*t, rows), op, ": all tensors must be on ", device_string(rows),
                   "; got ", device_string(*t));
  }
}

// Sums of rows by lists of entries, into out of a row for each.
void launch_lists(const LaunchScope& scope, const Tensor& rows, const Tensor& entries,
                  const Tensor& ranges, const std::optional<Tensor>& weights, int64_t per_row,
                  const Tensor& out) {
  const Tensor listed = dense(entries);
  const Tensor spans = dense(ranges);
  const InvertedIndex lists{listed, static_cast<const uint32_t*>(listed.const_data_ptr()),
                            static_cast<const uint2*>(spans.const_data_ptr())};
  ScatterRequest request{.rows = dense(rows),
                         .pitch = rows.size(1),
                         .first = 0,
                         .count = rows.size(1),
                         .per_row = per_row,
                         .idx = ranges,
                         .weights = std::nullopt,
                         .n = 1,
                         .fp32 = out.scalar_type() != rows.scalar_type()};
  if (weights) request.weights = dense(*weights);
  scatter_lists(scope, request, lists, out);
}

Tensor edge_point_sums(const Tensor& rows,  // (E / per_row, C)
                       const Tensor& entries, const Tensor& ranges,
                       const std::optional<Tensor>& weights, int64_t per_row) {
  constexpr const char* kOp = "edge_point_sums";
  // Guard
  const LaunchScope scope(kOp, rows);

  // Checks
  check_lists(kOp, rows, entries, ranges);
  const int64_t edges = entries.numel();
  FUSEDOPS_CHECK(per_row > 0 && rows.dim() == 2 && rows.size(0) * per_row == edges, kOp,
                 ": rows must have shape (", edges, " / per_row, C); got ", shape_string(rows));
  FUSEDOPS_CHECK(weights.has_value() || per_row == 1, kOp,
                 ": weights must be given where per_row is not 1; got ", per_row);
  if (weights) {
    FUSEDOPS_CHECK(weights->scalar_type() == ScalarType::Float && weights->numel() == edges, kOp,
                   ": weights must be ", edges, " float32 values; got ", shape_string(*weights));
  }
  check_devices(kOp, rows, {&entries, &ranges, weights ? &*weights : &entries});

  // Allocate, launch
  const Tensor out = new_dense(rows, {ranges.size(0), rows.size(1)}, wide_dtype(rows));
  if (out.numel() == 0) return out;
  launch_lists(scope, rows, entries, ranges, weights, per_row, out);

  // Launch check
  check_launch(kOp);
  return out;
}

Tensor edge_message_sums(const Tensor& rows,     // (N, C)
                         const Tensor& entries,  // (E,)
                         const Tensor& ranges) {
  constexpr const char* kOp = "edge_message_sums";
  // Guard
  const LaunchScope scope(kOp, rows);

  // Checks
  check_lists(kOp, rows, entries, ranges);
  check_dim(kOp, "rows", rows, 2, "(N, C)");
  check_devices(kOp, rows, {&entries, &ranges});

  // Allocate, launch
  const Tensor out = new_dense(rows, {ranges.size(0), rows.size(1)});
  if (out.numel() == 0) return out;
  launch_lists(scope, rows, entries, ranges, std::nullopt, 1, out);

  // Launch check
  check_launch(kOp);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("edge_lists", FUSEDOPS_BOX(&edge_lists));
  m.impl("edge_message_sums", FUSEDOPS_BOX(&edge_message_sums));
  m.impl("edge_point_sums", FUSEDOPS_BOX(&edge_point_sums));
}

}  // namespace fusedops::cuda
