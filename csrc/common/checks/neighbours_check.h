// Checks that k-NN, ball query and radius search share; fakes repeat the texts in
// python/fusedops/_fakes/neighbours.py.
#pragma once

#include <vector>

#include "csrc/common/checks/cloud_check.h"
#include "csrc/common/neighbours.h"
#include "csrc/common/point_grid.h"

namespace fusedops {

struct NeighbourTensors {
  CloudTensors points;
  CloudTensors queries;
  std::optional<Tensor> grid;
  NeighbourAlgorithm algorithm;
};

// The index over these points (common/point_grid.h) takes so many bytes.
inline int64_t grid_bytes(const CloudTensors& points) {
  if (points.dtype == DType::kFloat64) {
    GridView<double> view;
    return grid_layout(grid_shape(points.view), nullptr, &view);
  }
  GridView<float> view;
  return grid_layout(grid_shape(points.view), nullptr, &view);
}

inline void check_grid_form(const char* op, const CloudTensors& points) {
  FUSEDOPS_CHECK(points.view.num_rows() < (int64_t{1} << 31), op,
                 ": points must have fewer than 2^31 rows; got shape ",
                 shape_string(points.points));
  FUSEDOPS_CHECK(points.view.dim >= 1 && points.view.dim <= kMaxGridDim, op,
                 ": points must have 1 to ", kMaxGridDim, " coordinates for a grid; got shape ",
                 shape_string(points.points));
}

inline CloudTensors check_grid_points(const char* op, const Tensor& points,
                                      const std::optional<Tensor>& lengths,
                                      const std::optional<Tensor>& offsets) {
  CloudTensors clouds = check_clouds(op, points, lengths, offsets);
  check_grid_form(op, clouds);
  return clouds;
}

inline NeighbourTensors check_neighbours(const char* op, const Tensor& points,
                                         const Tensor& queries,
                                         const std::optional<Tensor>& lengths,
                                         const std::optional<Tensor>& query_lengths,
                                         const std::optional<Tensor>& offsets,
                                         const std::optional<Tensor>& query_offsets,
                                         const std::optional<Tensor>& grid, int64_t algorithm) {
  FUSEDOPS_CHECK(algorithm >= 0 && algorithm < kNumNeighbourAlgorithms, op,
                 ": algorithm must be a code from 0 to ", kNumNeighbourAlgorithms - 1, "; got ",
                 algorithm);
  NeighbourTensors result{
      check_clouds(op, points, lengths, offsets),
      check_clouds(op, queries, query_lengths, query_offsets,
                   {.points = "queries", .lengths = "query_lengths", .offsets = "query_offsets"}),
      grid, static_cast<NeighbourAlgorithm>(algorithm)};
  check_cloud_pair(op, result.queries, "queries", result.points, "points");
  if (result.algorithm == NeighbourAlgorithm::kGrid || grid) check_grid_form(op, result.points);
  FUSEDOPS_CHECK(result.points.view.capacity < (int64_t{1} << 31), op,
                 ": points must have fewer than 2^31 rows a cloud; got shape ",
                 shape_string(points));
  if (grid) {
    const int64_t bytes = grid_bytes(result.points);
    FUSEDOPS_CHECK(same_device(*grid, points) && grid->scalar_type() == ScalarType::Byte &&
                       grid->dim() == 1 && grid->size(0) == bytes && grid->is_contiguous(),
                   op, ": grid must be what point_grid made of points, ", bytes,
                   " bytes of uint8 on ", device_string(points), "; got ",
                   dtype_name(grid->scalar_type()), " of shape ", shape_string(*grid), " on ",
                   device_string(*grid));
  }
  return result;
}

inline constexpr size_t kMaxBallScales = 4;  // radii of one search

inline void check_k(const char* op, int64_t k) {
  FUSEDOPS_CHECK(k >= 1 && k <= kMaxNeighbours, op, ": k must be from 1 to ", kMaxNeighbours,
                 "; got ", k);
}

inline void check_norm(const char* op, int64_t norm) {
  FUSEDOPS_CHECK(norm == 1 || norm == 2, op, ": norm must be 1 or 2; got ", norm);
}

inline bool suits_tensor_cores(const CloudTensors& points, int64_t k, int64_t norm) {
  return points.dtype != DType::kFloat64 && norm == 2 && k <= 128 && points.view.dim >= 16 &&
         points.view.dim <= 512;
}

inline NeighbourTensors check_knn(const Tensor& points, const Tensor& queries,
                                  const std::optional<Tensor>& lengths,
                                  const std::optional<Tensor>& query_lengths,
                                  const std::optional<Tensor>& offsets,
                                  const std::optional<Tensor>& query_offsets,
                                  const std::optional<Tensor>& grid, int64_t k, int64_t norm,
                                  int64_t algorithm) {
  NeighbourTensors result = check_neighbours("knn", points, queries, lengths, query_lengths,
                                             offsets, query_offsets, grid, algorithm);
  check_k("knn", k);
  check_norm("knn", norm);
  FUSEDOPS_CHECK(
      result.algorithm != NeighbourAlgorithm::kTensor || suits_tensor_cores(result.points, k, norm),
      "knn: algorithm tensor needs 16 to 512 coordinates, norm 2, k of at most 128 and a "
      "dtype other than float64; got points of shape ",
      shape_string(points), " and ", dtype_name(points.scalar_type()), ", norm ", norm, ", k ", k);
  return result;
}

inline void check_radius(const char* op, double radius) {
  FUSEDOPS_CHECK(radius >= 0, op, ": radius must not be negative; got ", radius);
}

inline NeighbourTensors check_radius_search(
    const char* op, const Tensor& points, const Tensor& queries,
    const std::optional<Tensor>& lengths, const std::optional<Tensor>& query_lengths,
    const std::optional<Tensor>& offsets, const std::optional<Tensor>& query_offsets,
    const std::optional<Tensor>& grid, double radius, int64_t algorithm) {
  NeighbourTensors result = check_neighbours(op, points, queries, lengths, query_lengths, offsets,
                                             query_offsets, grid, algorithm);
  FUSEDOPS_CHECK(result.algorithm != NeighbourAlgorithm::kTensor, op,
                 ": algorithm must be auto, brute or grid; got tensor");
  check_radius(op, radius);
  return result;
}

inline NeighbourTensors check_ball_query(const Tensor& points, const Tensor& queries,
                                         const std::optional<Tensor>& lengths,
                                         const std::optional<Tensor>& query_lengths,
                                         const std::optional<Tensor>& offsets,
                                         const std::optional<Tensor>& query_offsets,
                                         const std::optional<Tensor>& grid, double radius,
                                         int64_t k, int64_t algorithm) {
  NeighbourTensors result =
      check_radius_search("ball_query", points, queries, lengths, query_lengths, offsets,
                          query_offsets, grid, radius, algorithm);
  check_k("ball_query", k);
  return result;
}

inline NeighbourTensors check_ball_query_scales(const Tensor& points, const Tensor& queries,
                                                const std::optional<Tensor>& lengths,
                                                const std::optional<Tensor>& query_lengths,
                                                const std::optional<Tensor>& offsets,
                                                const std::optional<Tensor>& query_offsets,
                                                const std::vector<double>& radii,
                                                const std::vector<int64_t>& ks) {
  const char* op = "ball_query_scales";
  NeighbourTensors result =
      check_neighbours(op, points, queries, lengths, query_lengths, offsets, query_offsets,
                       std::nullopt, static_cast<int64_t>(NeighbourAlgorithm::kAuto));
  FUSEDOPS_CHECK(!radii.empty() && radii.size() <= kMaxBallScales && radii.size() == ks.size(), op,
                 ": radii and ks must be 1 to ", kMaxBallScales, " of each; got ", radii.size(),
                 " and ", ks.size());
  for (const double radius : radii) check_radius(op, radius);
  for (const int64_t k : ks) check_k(op, k);
  return result;
}

inline void check_radius_fill(const NeighbourTensors& in, const Tensor& starts, int64_t total) {
  check_index_vector("radius_fill", "starts", starts, in.queries.view.num_rows() + 1, "points",
                     in.points.points);
  FUSEDOPS_CHECK(total >= 0 && total < (int64_t{1} << 31),
                 "radius_fill: total must be from 0 to 2^31 - 1; got ", total);
}

// Distances come in what they were computed in.
inline ScalarType distance_type(DType dtype) {
  return dtype == DType::kFloat64 ? ScalarType::Double : ScalarType::Float;
}

inline DType check_knn_backward(const Tensor& grad, const Tensor& points, const Tensor& queries,
                                const Tensor& idx, int64_t norm) {
  const char* op = "knn_backward";
  FUSEDOPS_CHECK(
      grad.scalar_type() == ScalarType::Float || grad.scalar_type() == ScalarType::Double, op,
      ": grad must be float16, bfloat16, float32 or float64; got ", dtype_name(grad.scalar_type()));
  const DType dtype = check_floating(op, "points", points);
  check_like(op, "queries", queries, "points", points);
  check_index(op, "idx", idx, "points", points);
  check_norm(op, norm);
  const bool padded = points.dim() == 3;
  check_dim(op, "points", points, padded ? 3 : 2, "(P, D)");
  check_dim(op, "queries", queries, padded ? 3 : 2, padded ? "(B, M, D)" : "(Q, D)");
  FUSEDOPS_CHECK(queries.size(queries.dim() - 1) == points.size(points.dim() - 1) &&
                     (!padded || queries.size(0) == points.size(0)),
                 op, ": queries must match points ", shape_string(points), "; got ",
                 shape_string(queries));
  bool matches = idx.dim() == queries.dim() && idx.size(idx.dim() - 1) > 0;
  for (int64_t i = 0; matches && i + 1 < idx.dim(); ++i) matches = idx.size(i) == queries.size(i);
  FUSEDOPS_CHECK(matches, op, ": idx must have a row for each of queries ", shape_string(queries),
                 "; got ", shape_string(idx));
  check_same_shape(op, "grad", grad, "idx", idx);
  FUSEDOPS_CHECK(same_device(grad, points) && grad.scalar_type() == distance_type(dtype), op,
                 ": grad must be ", dtype_name(distance_type(dtype)), " on ", device_string(points),
                 " like the distances; got ", dtype_name(grad.scalar_type()), " on ",
                 device_string(grad));
  FUSEDOPS_CHECK(idx.numel() < (int64_t{1} << 31), op,
                 ": idx must have fewer than 2^31 elements; got shape ", shape_string(idx));
  return dtype;
}

// (..., last) over the rows of the queries: (B, M, last) padded, (Q, last) packed.
inline std::vector<int64_t> rows_by(const CloudTensors& queries, int64_t last) {
  const auto sizes = queries.points.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = last;
  return shape;
}
inline std::vector<int64_t> rows_of(const CloudTensors& queries) {
  std::vector<int64_t> shape = rows_by(queries, 1);
  shape.pop_back();
  return shape;
}

// All indices of a search of several radii.
inline int64_t scales_total(const CloudTensors& queries, const std::vector<int64_t>& ks) {
  int64_t total = 0;
  for (const int64_t k : ks) total += queries.view.num_rows() * k;
  return total;
}

// A row of counts a radius.
inline std::vector<int64_t> rows_of_scales(const CloudTensors& queries,
                                           const std::vector<int64_t>& ks) {
  std::vector<int64_t> sizes = rows_of(queries);
  sizes.insert(sizes.begin(), static_cast<int64_t>(ks.size()));
  return sizes;
}

// What a squared distance is compared with: the square of the radius, rounded like the distances.
inline double squared_radius(double radius, DType dtype) {
  if (dtype == DType::kFloat64) return radius * radius;
  const float r = static_cast<float>(radius);
  return r * r;
}

}  // namespace fusedops
