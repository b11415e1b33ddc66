// The first layer over edges: its rows, and the gradient of its weight of offsets.
#pragma once

#include "csrc/common/device/division.cuh"
#include "csrc/cuda/points/edge_rows/row_queue.cuh"

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
  SmallDivider groups, k;
  int rows, n;

  __device__ __forceinline__ int64_t index(int64_t row) const { return row < rows ? idx[row] : -1; }
  // j: the index of that row.
  __device__ __forceinline__ RowEdge edge(int64_t row, int64_t j) const {
    if (j < 0 || j >= n) return {-1, 0};
    const uint32_t group = k.divide(static_cast<uint32_t>(row));
    const auto cloud = static_cast<int>(groups.divide(group));
    return {cloud * n + static_cast<int>(j), static_cast<int>(group)};
  }

  __device__ __forceinline__ void offset(const RowEdge& edge, float (&to)[3]) const {
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      to[d] = points[int64_t{edge.point} * 3 + d] -
              (centers ? centers[int64_t{edge.group} * 3 + d] : 0.f);
    }
  }
};

// The edges of a thread's rows, kRows at a time, of which the next ones' indices are on their way.
template <int kRows>
class RowEdgeWalk {
 public:
  __device__ __forceinline__ RowEdgeWalk(const RowEdges& edges, int64_t first, int64_t step)
      : edges_(edges), first_(first), step_(step) {
    load();
  }
  // The edges at `first`; then those of the rows behind them.
  __device__ __forceinline__ void take(RowEdge (&to)[kRows]) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) to[u] = edges_.edge(first_ + u * step_, index_[u]);
    first_ += kRows * step_;
    load();
  }

 private:
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int u = 0; u < kRows; ++u) index_[u] = edges_.index(first_ + u * step_);
  }

  const RowEdges& edges_;
  int64_t first_, step_;
  int64_t index_[kRows];
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
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    edge_rows_first_kernel(const __grid_constant__ RowFirst<T> p) {
  using Queue = RowQueue<float, 1>;
  constexpr int kRows = Queue::kRows;
  __shared__ typename Queue::Storage storage;
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
  int64_t first = int64_t{at.row_block} * p.grid.threads_y + at.ty;
  RowEdgeWalk<kRows> walk(p.edges, first, step);
  RowEdge edge[kRows], next[kRows];
  walk.take(next);
  Queue queue(storage, {p.by_point}, nullptr, p.channels, at.col);
  const auto row_of = [&](int u) { return int64_t{next[u].point}; };
  queue.ask(row_of);
  for (; first < p.edges.rows; first += kRows * step) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) edge[u] = next[u];
    walk.take(next);
    queue.advance(row_of);
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      const int64_t row = first + u * step;
      if (row >= p.edges.rows) break;
      float y[kRowVec] = {};
      if (queue.counts(u)) {
        if (p.by_group) {
          load_channels(p.by_group + int64_t{edge[u].group} * p.channels, at.col, y);
        }
        const auto by_point = queue.row(u, 0);
#pragma unroll
        for (int i = 0; i < kRowVec; ++i) y[i] += p.by_point ? by_point.value[i] : 0.f;
        if (p.weight) {
          float offset[3];
          p.edges.offset(edge[u], offset);
#pragma unroll
          for (int i = 0; i < kRowVec; ++i) {
#pragma unroll
            for (int d = 0; d < 3; ++d) y[i] += weight[d][i] * offset[d];
          }
        }
        if constexpr (kApplies) apply(p, at.col, y);
      }
      store_row(p.y, row, p.channels, at.col, y);
      if (at.col == 0) p.valid[row] = queue.counts(u);
    }
  }
  wait_for_all_copies();
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
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    edge_rows_offsets_kernel(const __grid_constant__ RowOffsets<T> p) {
  using Queue = RowQueue<T, 1>;
  constexpr int kRows = Queue::kRows;
  __shared__ union {
    typename Queue::Storage queue;
    float sums[kRowThreads * kRowVec];
  } shared;
  const RowPlace at(p.grid, p.channels);
  float sums[3][kRowVec] = {};
  const int64_t step = int64_t{p.grid.row_blocks} * p.grid.threads_y;
  int64_t first = int64_t{at.row_block} * p.grid.threads_y + at.ty, asked = first;
  const int rows = at.active ? p.edges.rows : 0;
  RowEdgeWalk<kRows> walk(p.edges, first, step);
  RowEdge edge[kRows];
  Queue queue(shared.queue, {p.dy}, nullptr, p.channels, at.col);
  const auto row_of = [&](int u) { return asked + u * step < rows ? asked + u * step : -1; };
  queue.ask(row_of);
  for (; first < rows; first += kRows * step) {
    asked += kRows * step;
    walk.take(edge);
    queue.advance(row_of);
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      if (edge[u].point < 0) continue;
      const auto row = queue.row(u, 0);
      float offset[3];
      p.edges.offset(edge[u], offset);
#pragma unroll
      for (int i = 0; i < kRowVec; ++i) {
        const float dy = to_compute(row.value[i]);
#pragma unroll
        for (int d = 0; d < 3; ++d) sums[d][i] += dy * offset[d];
      }
    }
  }
  wait_for_all_copies();
  float* const to = p.partial + static_cast<int64_t>(at.row_block) * 3 * p.channels;
#pragma unroll
  for (int d = 0; d < 3; ++d)
    store_block_sum(p.grid, at, p.channels, sums[d], shared.sums, to + d * p.channels);
}

}  // namespace fusedops
