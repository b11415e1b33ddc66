// Gradient of k-NN distances on CUDA: the op.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/int_math.h"
#include "csrc/cuda/points/index/point_grid.h"
#include "csrc/cuda/points/neighbours/knn_backward.cuh"

namespace fusedops::cuda {
namespace {

unsigned blocks_for(int64_t count) {
  return static_cast<unsigned>(ceil_div(count, kKnnBackwardThreads));
}

KnnEdges make_edges(const Tensor& grad, const Tensor& points, const Tensor& queries,
                    const Tensor& idx, int64_t norm) {
  KnnEdges edges{};
  edges.points = points.const_data_ptr();
  edges.queries = queries.const_data_ptr();
  edges.index = static_cast<const int64_t*>(idx.const_data_ptr());
  edges.grad = grad.const_data_ptr();
  edges.point_rows = leading_numel(points);
  edges.query_rows = leading_numel(queries);
  edges.dim = points.size(points.dim() - 1);
  edges.k = idx.size(idx.dim() - 1);
  edges.queries_per_cloud = points.dim() == 3 ? queries.size(1) : 0;
  edges.points_per_cloud = points.dim() == 3 ? points.size(1) : 0;
  edges.manhattan = norm == 1;
  return edges;
}

std::tuple<Tensor, Tensor> knn_backward(const Tensor& grad,     // (B, M, k) or (Q, k)
                                        const Tensor& points,   // (B, N, D) or (P, D)
                                        const Tensor& queries,  // (B, M, D) or (Q, D)
                                        const Tensor& idx,      // like grad
                                        int64_t norm) {
  // Guard
  const LaunchScope scope("knn_backward", points);

  // Checks
  const DType dtype = check_knn_backward(grad, points, queries, idx, norm);

  // Contract
  const Tensor inputs[] = {dense(grad), dense(points), dense(queries), dense(idx)};
  const KnnEdges edges = make_edges(inputs[0], inputs[1], inputs[2], inputs[3], norm);
  const int64_t count = edges.query_rows * edges.k;

  // Allocate
  const Tensor dpoints = new_dense(inputs[1], inputs[1].sizes());
  const Tensor dqueries = new_dense(inputs[2], inputs[2].sizes());

  // Launch
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using S = DeviceType<D>;
    if (dqueries.numel() > 0) {
      knn_backward_queries_kernel<S>
          <<<blocks_for(dqueries.numel()), kKnnBackwardThreads, 0, scope.stream()>>>(
              edges, static_cast<S*>(dqueries.mutable_data_ptr()));
    }
    if (dpoints.numel() == 0) return;
    const int64_t aligned = round_up(count, 32);
    const Tensor scratch = empty_bytes(points, aligned * 24);
    auto* keys = static_cast<uint64_t*>(scratch.mutable_data_ptr());
    uint64_t* sorted_keys = keys + aligned;
    auto* ids = reinterpret_cast<uint32_t*>(sorted_keys + aligned);
    uint32_t* sorted_ids = ids + aligned;
    if (count > 0) {
      knn_backward_keys_kernel<<<blocks_for(count), kKnnBackwardThreads, 0, scope.stream()>>>(
          edges, keys, ids);
      int bits = 1;
      while ((int64_t{1} << bits) <= edges.point_rows) ++bits;
      sort_pairs(scope, keys, ids, sorted_keys, sorted_ids, count, bits);
    }
    knn_backward_points_kernel<S>
        <<<blocks_for(dpoints.numel()), kKnnBackwardThreads, 0, scope.stream()>>>(
            edges, sorted_keys, sorted_ids, static_cast<S*>(dpoints.mutable_data_ptr()));
  });

  // Launch check
  check_launch("knn_backward");
  return {dpoints, dqueries};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("knn_backward", FUSEDOPS_BOX(&knn_backward));
}

}  // namespace fusedops::cuda
