// Lists of the edges to every point, and sums by them, on CUDA: an index is inverted once for all
// sums of a layer over edges.
#include <torch/csrc/stable/library.h>

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

Tensor edge_point_sums(const Tensor& rows,  // (E / per_row, C)
                       const Tensor& entries, const Tensor& ranges,
                       const std::optional<Tensor>& weights, int64_t per_row) {
  constexpr const char* kOp = "edge_point_sums";
  // Guard
  const LaunchScope scope(kOp, rows);

  // Checks
  const int64_t edges = entries.numel(), points = ranges.size(0);
  check_floating(kOp, "rows", rows);
  FUSEDOPS_CHECK(entries.scalar_type() == ScalarType::Int && entries.dim() == 1 &&
                     ranges.scalar_type() == ScalarType::Int && ranges.dim() == 2 &&
                     ranges.size(1) == 2,
                 kOp, ": entries and ranges must be what edge_lists gives; got shapes ",
                 shape_string(entries), " and ", shape_string(ranges));
  FUSEDOPS_CHECK(per_row > 0 && rows.dim() == 2 && rows.size(0) * per_row == edges, kOp,
                 ": rows must have shape (", edges, " / per_row, C); got ", shape_string(rows));
  FUSEDOPS_CHECK(weights.has_value() || per_row == 1, kOp,
                 ": weights must be given where per_row is not 1; got ", per_row);
  if (weights) {
    FUSEDOPS_CHECK(weights->scalar_type() == ScalarType::Float && weights->numel() == edges, kOp,
                   ": weights must be ", edges, " float32 values; got ", shape_string(*weights));
  }
  for (const Tensor* t : {&entries, &ranges, weights ? &*weights : &entries}) {
    FUSEDOPS_CHECK(same_device(*t, rows), kOp, ": all tensors must be on ", device_string(rows),
                   "; got ", device_string(*t));
  }

  // Allocate, launch
  const Tensor out = new_dense(rows, {points, rows.size(1)}, ScalarType::Float);
  if (out.numel() == 0) return out;
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
                         .fp32 = true};
  if (weights) request.weights = dense(*weights);
  scatter_lists(scope, request, lists, out);

  // Launch check
  check_launch(kOp);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("edge_lists", FUSEDOPS_BOX(&edge_lists));
  m.impl("edge_point_sums", FUSEDOPS_BOX(&edge_point_sums));
}

}  // namespace fusedops::cuda
