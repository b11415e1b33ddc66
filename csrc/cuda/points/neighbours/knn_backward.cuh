// Gradient of k-NN distances. The queries' is a sum over each row; the points' is summed by point,
// over edges sorted by the point they lead to: the same order in every run.
#pragma once

#include "csrc/common/device/cloud.cuh"

namespace fusedops {

inline constexpr int kKnnBackwardThreads = 256;

struct KnnEdges {
  const void* points;    // (point_rows, D)
  const void* queries;   // (query_rows, D)
  const int64_t* index;  // (query_rows, k), -1: none
  const void* grad;      // (query_rows, k), float32 or float64
  int64_t point_rows, query_rows, dim, k;
  int64_t queries_per_cloud, points_per_cloud;  // 0 where packed: indices are rows
  bool manhattan;

  // The row of points that an edge leads to; point_rows for none or an index outside.
  __device__ int64_t target(int64_t edge) const {
    const int64_t i = index[edge];
    const int64_t limit = queries_per_cloud ? points_per_cloud : point_rows;
    if (i < 0 || i >= limit) return point_rows;
    return queries_per_cloud ? edge / k / queries_per_cloud * points_per_cloud + i : i;
  }
};

// d dist / d query, one coordinate.
template <class C>
__device__ __forceinline__ C distance_slope(C query, C point, bool manhattan) {
  const C delta = query - point;
  if (!manhattan) return 2 * delta;
  return delta > 0 ? C{1} : delta < 0 ? C{-1} : C{0};
}

template <class S>
__device__ __forceinline__ Compute<S> value_of(const void* array, int64_t i) {
  return to_compute(static_cast<const S*>(array)[i]);
}
template <class C>
__device__ __forceinline__ C grad_of(const KnnEdges& edges, int64_t edge) {
  return static_cast<const C*>(edges.grad)[edge];
}

template <class S>
__global__ void knn_backward_queries_kernel(KnnEdges edges, S* __restrict__ dqueries) {
  using C = Compute<S>;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= edges.query_rows * edges.dim) return;
  const int64_t row = i / edges.dim;
  const C query = value_of<S>(edges.queries, i);
  C sum = 0;
  for (int64_t edge = row * edges.k; edge < (row + 1) * edges.k; ++edge) {
    const int64_t target = edges.target(edge);
    if (target == edges.point_rows) continue;
    const C point = value_of<S>(edges.points, target * edges.dim + i % edges.dim);
    sum += grad_of<C>(edges, edge) * distance_slope(query, point, edges.manhattan);
  }
  dqueries[i] = from_compute<S>(sum);
}

__global__ void knn_backward_keys_kernel(KnnEdges edges, uint64_t* keys, uint32_t* ids) {
  const int64_t edge = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (edge >= edges.query_rows * edges.k) return;
  keys[edge] = static_cast<uint64_t>(edges.target(edge));
  ids[edge] = static_cast<uint32_t>(edge);
}

template <class S>
__global__ void knn_backward_points_kernel(KnnEdges edges, const uint64_t* __restrict__ keys,
                                           const uint32_t* __restrict__ ids,
                                           S* __restrict__ dpoints) {
  using C = Compute<S>;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= edges.point_rows * edges.dim) return;
  const int64_t d = i % edges.dim;
  const auto target = static_cast<uint64_t>(i / edges.dim);
  const int64_t count = edges.query_rows * edges.k;
  int64_t low = 0;
  int64_t high = count;
  while (low < high) {  // the first edge that leads here
    const int64_t middle = (low + high) / 2;
    if (keys[middle] < target) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const C point = value_of<S>(edges.points, i);
  C sum = 0;
  for (int64_t at = low; at < count && keys[at] == target; ++at) {
    const int64_t edge = ids[at];
    const C query = value_of<S>(edges.queries, edge / edges.k * edges.dim + d);
    sum -= grad_of<C>(edges, edge) * distance_slope(query, point, edges.manhattan);
  }
  dpoints[i] = from_compute<S>(sum);
}

}  // namespace fusedops
