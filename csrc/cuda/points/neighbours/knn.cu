// k nearest neighbours on CUDA: the op. Kernels: knn_brute.cuh, grid_search.cuh, feature_knn.cuh.
#include <torch/csrc/stable/library.h>

#include <limits>
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cuda/points/index/monotone_offsets.h"
#include "csrc/cuda/points/neighbours/neighbour_search.h"

namespace fusedops::cuda {
namespace {

constexpr int64_t kFeatureMinDim = 17;
constexpr int64_t kFeatureMinPoints = 128;

bool prefers_features(const NeighbourTensors& in) {
  return in.points.view.dim >= kFeatureMinDim && in.points.view.capacity >= kFeatureMinPoints;
}

std::tuple<Tensor, Tensor> knn(const Tensor& points,   // (B, N, D) or (P, D)
                               const Tensor& queries,  // (B, M, D) or (Q, D)
                               const std::optional<Tensor>& lengths,
                               const std::optional<Tensor>& query_lengths,
                               const std::optional<Tensor>& offsets,
                               const std::optional<Tensor>& query_offsets,
                               const std::optional<Tensor>& grid, int64_t k, int64_t norm,
                               int64_t algorithm) {
  // Guard
  const LaunchScope scope("knn", points);

  // Contract, checks
  const NeighbourTensors in =
      with_monotone_offsets(scope, check_knn(points, queries, lengths, query_lengths, offsets,
                                             query_offsets, grid, k, norm, algorithm));

  // Allocate
  Neighbours out;
  out.index = new_dense(points, rows_by(in.queries, k), ScalarType::Long);
  out.distance = new_dense(points, rows_by(in.queries, k), distance_type(in.points.dtype));

  // Empty early return
  if (in.queries.view.num_rows() == 0) return {out.index, out.distance};
  if (in.queries.view.count == 0) {
    fill_without_clouds(out);
    return {out.index, out.distance};
  }

  // Config
  const NeighbourQuery query{
      .k = k, .norm = norm, .bound = std::numeric_limits<double>::infinity()};
  const bool automatic = in.algorithm == NeighbourAlgorithm::kAuto;
  const bool some = in.points.view.num_rows() > 0;
  const bool features = can_search_features(scope, in, k, norm);
  FUSEDOPS_CHECK(features || in.algorithm != NeighbourAlgorithm::kTensor,
                 "knn: algorithm tensor needs more shared memory than the GPU has; got points of "
                 "shape ",
                 shape_string(points), ", k ", k);
  const bool with_grid = some && (in.grid || in.algorithm == NeighbourAlgorithm::kGrid ||
                                  (automatic && prefers_grid(in, k)));
  const bool with_tensor_cores =
      some && features &&
      (in.algorithm == NeighbourAlgorithm::kTensor || (automatic && prefers_features(in)));

  // Launch
  if (with_grid) {
    search_grid(scope, in, query, out);
  } else if (with_tensor_cores) {
    search_features(scope, in, query, out);
  } else {
    search_brute(scope, in, query, out);
  }

  // Launch check
  check_launch("knn");
  return {out.index, out.distance};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) { m.impl("knn", FUSEDOPS_BOX(&knn)); }

}  // namespace fusedops::cuda
