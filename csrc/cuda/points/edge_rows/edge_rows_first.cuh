// The first layer over edges: its rows, and the gradient of its weight of offsets.
#pragma once

#include "csrc/cuda/points/edge_rows/row_walk.cuh"

namespace fusedops {

// Where an edge (i, j) is among the points and the groups of all clouds; point is -1 for none.
struct RowEdge {
  int point, group;
};

// Row r of idx is an edge of group r / k.
struct RowEdges {
  const int64_t* idx;    // (clouds * groups * k,)
  const float* points;   // (clouds, n, 3), or null
  const float* centers;  // (clouds, groups, 3), or null: 0
  int rows, groups, n, k;

  __device__ __forceinline__ RowEdge at(int64_t row) const {
    if (row >= rows) return {-1, 0};
    const int64_t j = idx[row];
    const unsigned group = static_cast<unsigned>(row) / static_cast<unsigned>(k);
    const unsigned cloud = group / static_cast<unsigned>(groups);
    const bool counts = j >= 0 && j < n;
    return {counts ? static_cast<int>(cloud) * n + static_cast<int>(j) : -1,
            static_cast<int>(group)};
  }

  __device__ __forceinline__ void offset(const RowEdge& edge, float (&to)[3]) const {
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      to[d] = points[int64_t{edge.point} * 3 + d] -
              (centers ? centers[int64_t{edge.group} * 3 + d] : 0.f);
    }
  }
};

template <class T>
struct RowFirst {
  RowEdges edges;
  const float *by_point, *by_group;  // (clouds, n, channels), (clouds, groups, channels), or null
  const float* weight;               // (channels, 3), or null
  const float* stats;                // (kRowStatistics, channels) where norm and activation follow
  T* y;
  bool* valid;
  int channels;
  float slope;
  RowGrid grid;
};

// The norm's vectors are read again for every row, from L1: registers hold the rows under way.
template <class T>
__device__ __forceinline__ void apply(const RowFirst<T>& p, int col, float (&y)[kRowVec]) {
  const RowNorm norm(p.stats, p.channels, col);
#pragma unroll
  for (int i = 0; i < kRowVec; ++i) y[i] = row_activation(norm.z(y[i], i), p.slope);
}

template <class T, bool kApplies>
__global__ void __launch_bounds__(kRowThreads, 2)
    edge_rows_first_kernel(const __grid_constant__ RowFirst<T> p) {
  const RowPlace at(p.grid, p.channels);
  if (!at.active) return;
  float weight[3][kRowVec] = {};
  if (p.weight) {
#pragma unroll
    for (int i = 0; i < kRowVec; ++i) {
#pragma unroll
      for (int d = 0; d < 3; ++d) weight[d][i] = p.weight[(at.col + i) * 3 + d];
    }
  }
  const int64_t step = int64_t{p.grid.row_blocks} * p.grid.threads_y;
  for (int64_t first = int64_t{at.row_block} * p.grid.threads_y + at.ty; first < p.edges.rows;
       first += kRowUnroll * step) {
    float y[kRowUnroll][kRowVec] = {}, added[kRowUnroll][kRowVec] = {};
    RowEdge edge[kRowUnroll];
#pragma unroll
    for (int u = 0; u < kRowUnroll; ++u) edge[u] = p.edges.at(first + u * step);
#pragma unroll
    for (int u = 0; u < kRowUnroll; ++u) {
      if (edge[u].point < 0) continue;
      const float* const by_point = p.by_point + int64_t{edge[u].point} * p.channels;
      const float* const by_group = p.by_group + int64_t{edge[u].group} * p.channels;
      if (p.by_point) load_channels(by_point, at.col, y[u]);
      if (p.by_group) load_channels(by_group, at.col, added[u]);
    }
#pragma unroll
    for (int u = 0; u < kRowUnroll; ++u) {
      const int64_t row = first + u * step;
      if (row >= p.edges.rows) break;
      if (edge[u].point >= 0) {
        float offset[3] = {};
        if (p.weight) p.edges.offset(edge[u], offset);
#pragma unroll
        for (int i = 0; i < kRowVec; ++i) {
          y[u][i] += added[u][i];
          if (p.weight == nullptr) continue;
#pragma unroll
          for (int d = 0; d < 3; ++d) y[u][i] += weight[d][i] * offset[d];
        }
        if constexpr (kApplies) apply(p, at.col, y[u]);
      }
      store_row(p.y, row, p.channels, at.col, y[u]);
      if (at.col == 0) p.valid[row] = edge[u].point >= 0;
    }
  }
}

template <class T>
struct RowOffsets {
  RowEdges edges;
  const T* dy;
  float* partial;  // (row_blocks, 3, channels)
  int channels;
  RowGrid grid;
};

template <class T>
__global__ void __launch_bounds__(kRowThreads, 2)
    edge_rows_offsets_kernel(const __grid_constant__ RowOffsets<T> p) {
  __shared__ float shared[kRowThreads * kRowVec];
  const RowPlace at(p.grid, p.channels);
  float sums[3][kRowVec] = {};
  const int64_t step = int64_t{p.grid.row_blocks} * p.grid.threads_y;
  for (int64_t first = int64_t{at.row_block} * p.grid.threads_y + at.ty;
       at.active && first < p.edges.rows; first += kRowUnroll * step) {
    RowVec<T> rows[kRowUnroll];
    RowEdge edge[kRowUnroll];
#pragma unroll
    for (int u = 0; u < kRowUnroll; ++u) {
      edge[u] = p.edges.at(first + u * step);
      if (edge[u].point < 0) continue;
      rows[u] = load_row(p.dy, first + u * step, p.channels, at.col);
    }
#pragma unroll
    for (int u = 0; u < kRowUnroll; ++u) {
      if (edge[u].point < 0) continue;
      float offset[3];
      p.edges.offset(edge[u], offset);
#pragma unroll
      for (int i = 0; i < kRowVec; ++i) {
        const float dy = to_compute(rows[u].value[i]);
#pragma unroll
        for (int d = 0; d < 3; ++d) sums[d][i] += dy * offset[d];
      }
    }
  }
  float* const to = p.partial + static_cast<int64_t>(at.row_block) * 3 * p.channels;
#pragma unroll
  for (int d = 0; d < 3; ++d)
    store_block_sum(p.grid, at, p.channels, sums[d], shared, to + d * p.channels);
}

}  // namespace fusedops
