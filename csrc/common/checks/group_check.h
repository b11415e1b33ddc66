// Checks of the grouping and interpolation ops; fakes repeat the texts.
#pragma once

#include <algorithm>
#include <limits>

#include "csrc/common/checks/cloud_check.h"

namespace fusedops {

// idx (B, M, K), int64, on the device of `like`, which has B clouds.
inline void check_neighbours(const char* op, const Tensor& idx, const char* like_name,
                             const Tensor& like) {
  check_index(op, "idx", idx, like_name, like);
  check_dim(op, "idx", idx, 3, "(B, M, K)");
  FUSEDOPS_CHECK(idx.size(0) == like.size(0), op, ": idx must have ", like.size(0),
                 " cloud(s) like ", like_name, "; got ", idx.size(0));
}

// Coordinates and weights: the dtype of `like`, or float32 beside halves.
inline DType check_side_input(const char* op, const char* name, const Tensor& tensor,
                              const char* like_name, const Tensor& like) {
  FUSEDOPS_CHECK(same_device(tensor, like), op, ": ", name, " must be on ", device_string(like),
                 " like ", like_name, "; got ", device_string(tensor));
  const DType dtype = check_floating(op, name, tensor);
  const bool beside_half = dtype == DType::kFloat32 && like.element_size() == 2;
  FUSEDOPS_CHECK(beside_half || tensor.scalar_type() == like.scalar_type(), op, ": ", name,
                 " must have dtype ", dtype_name(like.scalar_type()),
                 like.element_size() == 2 ? " or float32" : "", " like ", like_name, "; got ",
                 dtype_name(tensor.scalar_type()));
  return dtype;
}

// A sum by destination counts entries and destinations in 32 bits.
inline void check_scatter_size(const char* op, const Tensor& idx, int64_t n) {
  constexpr int64_t kMaxEntries = std::numeric_limits<int32_t>::max();
  constexpr int64_t kMaxRows = std::numeric_limits<uint32_t>::max() - int64_t{1};
  FUSEDOPS_CHECK(idx.numel() <= kMaxEntries, op, ": idx must have at most ", kMaxEntries,
                 " entries; got ", idx.numel());
  FUSEDOPS_CHECK(n <= kMaxRows / std::max<int64_t>(idx.size(0), 1), op,
                 ": the clouds must have at most ", kMaxRows, " points together; got ", idx.size(0),
                 " of ", n);
}

// A tensor (B, rows, channels) whose B and rows are known.
inline void check_rows(const char* op, const char* name, const Tensor& tensor, int64_t clouds,
                       int64_t rows, int64_t channels) {
  FUSEDOPS_CHECK(tensor.dim() == 3 && tensor.size(0) == clouds && tensor.size(1) == rows &&
                     tensor.size(2) == channels,
                 op, ": ", name, " must have shape (", clouds, ", ", rows, ", ", channels,
                 "); got ", shape_string(tensor));
}

// What group reads: contiguous tensors and sizes.
struct GroupArguments {
  Tensor idx;                                                           // (B, M, K)
  std::optional<Tensor> features = std::nullopt;                        // (B, N, C)
  std::optional<Tensor> points = std::nullopt, centers = std::nullopt;  // (B, N, D), (B, M, D)
  DType dtype, point_dtype;                  // of the result, of points and centers
  int64_t clouds, rows, groups, neighbours;  // B, N, M, K
  int64_t channels = 0, dim = 0;             // C, D
};

inline GroupArguments check_group(const std::optional<Tensor>& features, const Tensor& idx,
                                  const std::optional<Tensor>& points,
                                  const std::optional<Tensor>& centers) {
  constexpr const char* kOp = "group";
  FUSEDOPS_CHECK(features || points, kOp, ": features must be a tensor where points is None; got ",
                 "None");
  const char* name = features ? "features" : "points";
  const Tensor& first = features ? *features : *points;
  const DType dtype = check_floating(kOp, name, first);
  check_dim(kOp, name, first, 3, features ? "(B, N, C)" : "(B, N, D)");
  check_neighbours(kOp, idx, name, first);
  GroupArguments result{.idx = dense(idx),
                        .dtype = dtype,
                        .point_dtype = dtype,
                        .clouds = first.size(0),
                        .rows = first.size(1),
                        .groups = idx.size(1),
                        .neighbours = idx.size(2)};
  if (features) {
    result.channels = features->size(2);
    result.features = dense(*features);
  }
  FUSEDOPS_CHECK(!centers || points, kOp, ": centers must be None where points is None; got a ",
                 "tensor");
  if (points) {
    if (features) {
      result.point_dtype = check_side_input(kOp, "points", *points, name, first);
      check_dim(kOp, "points", *points, 3, "(B, N, D)");
      check_rows(kOp, "points", *points, result.clouds, result.rows, points->size(2));
    }
    result.dim = points->size(2);
    result.points = dense(*points);
  }
  if (centers) {
    check_like(kOp, "centers", *centers, "points", *points);
    check_rows(kOp, "centers", *centers, result.clouds, result.groups, result.dim);
    result.centers = dense(*centers);
  }
  return result;
}

// dout (B, M, K, W): channels first .. first + count of it are summed by idx into (B, n, count).
inline DType check_group_backward(const Tensor& dout, const Tensor& idx, int64_t n, int64_t first,
                                  int64_t count) {
  constexpr const char* kOp = "group_backward";
  const DType dtype = check_floating(kOp, "dout", dout);
  check_dim(kOp, "dout", dout, 4, "(B, M, K, C)");
  check_neighbours(kOp, idx, "dout", dout);
  FUSEDOPS_CHECK(dout.size(1) == idx.size(1) && dout.size(2) == idx.size(2), kOp,
                 ": dout must have shape (B, M, K, C) with (B, M, K) that of idx ",
                 shape_string(idx), "; got ", shape_string(dout));
  FUSEDOPS_CHECK(n >= 0, kOp, ": n must be >= 0; got ", n);
  FUSEDOPS_CHECK(first >= 0 && count >= 0 && first <= dout.size(3) - count, kOp,
                 ": first and count must name channels of dout ", shape_string(dout), "; got ",
                 first, " and ", count);
  check_scatter_size(kOp, idx, n);
  return dtype;
}

// features (B, N, C), idx (B, M, K), weights (B, M, K).
struct InterpolateArguments {
  Tensor features, idx, weights;
  DType dtype, weight_dtype;
  int64_t clouds, rows, queries, neighbours, channels;  // B, N, M, K, C
};

inline InterpolateArguments check_interpolate(const char* op, const Tensor& features,
                                              const Tensor& idx, const Tensor& weights) {
  const DType dtype = check_floating(op, "features", features);
  check_dim(op, "features", features, 3, "(B, N, C)");
  check_neighbours(op, idx, "features", features);
  const DType weight_dtype = check_side_input(op, "weights", weights, "features", features);
  check_same_shape(op, "weights", weights, "idx", idx);
  return {dense(features),  dense(idx),       dense(weights), dtype,       weight_dtype,
          features.size(0), features.size(1), idx.size(1),    idx.size(2), features.size(2)};
}

// dout (B, M, C) like the result of interpolate.
inline InterpolateArguments check_interpolate_backward(const Tensor& dout, const Tensor& features,
                                                       const Tensor& idx, const Tensor& weights) {
  constexpr const char* kOp = "interpolate_backward";
  check_floating(kOp, "dout", dout);
  InterpolateArguments result = check_interpolate(kOp, features, idx, weights);
  check_like(kOp, "dout", dout, "features", features);
  check_rows(kOp, "dout", dout, result.clouds, result.queries, result.channels);
  check_scatter_size(kOp, idx, result.rows);
  return result;
}

}  // namespace fusedops
