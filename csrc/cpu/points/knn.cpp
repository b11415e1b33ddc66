// point_grid, knn and knn_backward on the CPU.
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cpu/points/neighbours.h"

namespace fusedops::cpu {
namespace {

Tensor point_grid(const Tensor& points,                    // (B, N, D) or (P, D)
                  const std::optional<Tensor>& lengths,    // (B,)
                  const std::optional<Tensor>& offsets) {  // (B + 1,)
  // Checks
  const CloudTensors clouds =
      with_monotone_offsets(check_grid_points("point_grid", points, lengths, offsets));

  // Allocate
  const NoGradGuard no_grad;
  Tensor bytes = torch::stable::empty({grid_bytes(clouds)}, ScalarType::Byte);
  torch::stable::zero_(bytes);  // the gaps between clouds are never written

  // Empty early return
  if (clouds.view.num_rows() == 0) return bytes;

  // Launch
  with_compute(clouds.dtype, [&]<class T>() {
    GridView<T> grid;
    grid_layout(grid_shape(clouds.view), static_cast<char*>(bytes.mutable_data_ptr()), &grid);
    build_grid(grid, clouds);
  });
  return bytes;
}

std::tuple<Tensor, Tensor> knn(const Tensor& points,   // (B, N, D) or (P, D)
                               const Tensor& queries,  // (B, M, D) or (Q, D)
                               const std::optional<Tensor>& lengths,
                               const std::optional<Tensor>& query_lengths,
                               const std::optional<Tensor>& offsets,
                               const std::optional<Tensor>& query_offsets,
                               const std::optional<Tensor>& grid, int64_t k, int64_t norm,
                               int64_t algorithm) {
  // Contract, checks
  const NoGradGuard no_grad;
  const NeighbourTensors in = with_monotone_offsets(check_knn(
      points, queries, lengths, query_lengths, offsets, query_offsets, grid, k, norm, algorithm));
  FUSEDOPS_CHECK(in.algorithm != NeighbourAlgorithm::kTensor,
                 "knn: algorithm must be auto, brute or grid on the CPU; got tensor");

  // Allocate
  Tensor index = torch::stable::empty(rows_by(in.queries, k), ScalarType::Long);
  Tensor distance = torch::stable::empty(rows_by(in.queries, k), distance_type(in.points.dtype));

  // Empty early return
  if (index.numel() == 0) return {index, distance};

  // Launch
  with_compute(in.points.dtype, [&]<class T>() {
    search<T>(SearchData<T>(in, norm),
              {.k = k, .norm = norm, .bound = std::numeric_limits<double>::infinity()},
              {static_cast<int64_t*>(index.mutable_data_ptr()),
               static_cast<T*>(distance.mutable_data_ptr()), nullptr, false});
  });
  return {index, distance};
}

// Sums in T, one pass over the edges.
template <class T>
void sum_gradients(const Tensor& grad, const std::vector<T>& points, const std::vector<T>& queries,
                   const Tensor& idx, const Tensor& like, bool manhattan, std::vector<T>& dpoints,
                   std::vector<T>& dqueries) {
  const bool padded = like.dim() == 3;
  const int64_t dim = like.size(like.dim() - 1);
  const int64_t k = idx.size(idx.dim() - 1);
  const int64_t rows = leading_numel(idx);
  const int64_t limit = like.size(like.dim() - 2);
  const int64_t per_cloud = padded ? idx.size(1) : 1;
  const auto* index = static_cast<const int64_t*>(idx.const_data_ptr());
  const auto* gradient = static_cast<const T*>(grad.const_data_ptr());
  for (int64_t edge = 0; edge < rows * k; ++edge) {
    if (index[edge] < 0 || index[edge] >= limit) continue;
    const int64_t row = edge / k;
    const int64_t target = padded ? row / per_cloud * limit + index[edge] : index[edge];
    for (int64_t d = 0; d < dim; ++d) {
      const T delta = queries[row * dim + d] - points[target * dim + d];
      const T slope = manhattan ? static_cast<T>((delta > 0) - (delta < 0)) : 2 * delta;
      dqueries[row * dim + d] += gradient[edge] * slope;
      dpoints[target * dim + d] -= gradient[edge] * slope;
    }
  }
}

std::tuple<Tensor, Tensor> knn_backward(const Tensor& grad,     // (B, M, k) or (Q, k)
                                        const Tensor& points,   // (B, N, D) or (P, D)
                                        const Tensor& queries,  // (B, M, D) or (Q, D)
                                        const Tensor& idx,      // like grad
                                        int64_t norm) {
  // Checks
  const DType dtype = check_knn_backward(grad, points, queries, idx, norm);

  // Contract, allocate
  const NoGradGuard no_grad;
  const Tensor edges[] = {dense(grad), dense(idx)};
  const Tensor clouds[] = {dense(points), dense(queries)};
  const Tensor dpoints = new_dense(clouds[0], clouds[0].sizes());
  const Tensor dqueries = new_dense(clouds[1], clouds[1].sizes());

  // Launch
  with_compute(dtype, [&]<class T>() {
    std::vector<T> sums[] = {std::vector<T>(points.numel()), std::vector<T>(queries.numel())};
    sum_gradients<T>(edges[0], to_values<T>(clouds[0], dtype), to_values<T>(clouds[1], dtype),
                     edges[1], points, norm == 1, sums[0], sums[1]);
    dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
      std::copy(sums[0].begin(), sums[0].end(),
                static_cast<Storage<D>*>(dpoints.mutable_data_ptr()));
      std::copy(sums[1].begin(), sums[1].end(),
                static_cast<Storage<D>*>(dqueries.mutable_data_ptr()));
    });
  });
  return {dpoints, dqueries};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("point_grid", FUSEDOPS_BOX(&point_grid));
  m.impl("knn", FUSEDOPS_BOX(&knn));
  m.impl("knn_backward", FUSEDOPS_BOX(&knn_backward));
}

}  // namespace fusedops::cpu
