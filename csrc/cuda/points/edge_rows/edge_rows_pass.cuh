// Norm and activation of rows, forward and backward, each in one pass.
#pragma once

#include "csrc/cuda/points/edge_rows/row_queue.cuh"

namespace fusedops {

template <class T>
struct RowPass {
  const T* da;         // (rows, channels); with groups (groups, channels)
  const T* y;          // (rows, channels)
  const T* best;       // (groups, channels): y where a group's gradient goes
  const int* which;    // which row of a group that is, -1: none
  const bool* valid;   // (rows,), or null
  const float* stats;  // (kRowStatistics, channels)
  const float* sums;   // (2, channels), or null: the statistics are constants
  T* out;              // (rows, channels)
  float* partial;      // (row_blocks, 2, channels)
  int64_t rows;        // or groups
  int k, channels, split;
  float slope;
  RowGrid grid;
};

// Whether channel i of a row of maxima has a row behind it.
template <class T>
__device__ __forceinline__ void load_places(const RowPass<T>& p, const RowPlace& at, int64_t row,
                                            int (&places)[kRowVec]) {
#pragma unroll
  for (int i = 0; i < kRowVec; i += 4) {
    const auto part =
        *reinterpret_cast<const Vec<int, 4>*>(p.which + row * p.channels + at.col + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) places[i + j] = part.value[j];
  }
}

template <class T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    edge_rows_apply_kernel(const __grid_constant__ RowPass<T> p) {
  __shared__ typename RowQueue<T, 1>::Storage storage;
  const RowPlace at(p.grid, p.channels);
  if (!at.active) return;
  const RowNorm norm(p.stats, p.channels, at.col);
  RowQueue<T, 1> queue(storage, {p.y}, p.valid, p.channels, at.col);
  queue.for_each(p.grid, at, p.rows, [&](int64_t row, int u) {
    const auto y = queue.row(u, 0);
    float out[kRowVec];
    int places[kRowVec] = {};
    if (p.which) load_places(p, at, row, places);
#pragma unroll
    for (int i = 0; i < kRowVec; ++i) {
      const bool some = queue.counts(u) && places[i] >= 0;
      out[i] = some ? row_activation(norm.z(to_compute(y.value[i]), i), p.slope) : 0.f;
    }
    store_row(p.out, row, p.channels, at.col, out);
  });
}

template <class T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    edge_rows_sums_kernel(const __grid_constant__ RowPass<T> p) {
  __shared__ typename RowQueue<T, 2>::Storage storage;
  __shared__ float shared[kRowThreads * kRowVec];
  const RowPlace at(p.grid, p.channels);
  float of_dz[kRowVec] = {}, of_dzx[kRowVec] = {};
  if (at.active) {
    const RowNorm norm(p.stats, p.channels, at.col);
    RowQueue<T, 2> queue(storage, {p.da, p.y}, p.valid, p.channels, at.col);
    queue.for_each(p.grid, at, p.rows, [&](int64_t row, int u) {
      if (!queue.counts(u)) return;
      const auto da = queue.row(u, 0), ys = queue.row(u, 1);
      int places[kRowVec] = {};
      if (p.which) load_places(p, at, row, places);
#pragma unroll
      for (int i = 0; i < kRowVec; ++i) {
        if (places[i] < 0) continue;
        const float y = to_compute(ys.value[i]);
        const float dz = row_gradient(to_compute(da.value[i]), norm.z(y, i), p.slope);
        of_dz[i] += dz;
        of_dzx[i] += dz * (y - norm.mean[i]);
      }
    });
    float rstd[kRowVec];
    load_channels(p.stats + kRowRstd * p.channels, at.col, rstd);
#pragma unroll
    for (int i = 0; i < kRowVec; ++i) of_dzx[i] *= rstd[i];
  }
  float* const to = p.partial + static_cast<int64_t>(at.row_block) * 2 * p.channels;
  store_block_sum(p.grid, at, p.channels, of_dz, shared, to);
  store_block_sum(p.grid, at, p.channels, of_dzx, shared, to + p.channels);
}

// dy = scale (dz - (sum dz + x sum dzx) / count) of a thread's channels, where the statistics are
// the batch's.
struct RowGradient {
  float mean_dz[kRowVec], slope[kRowVec];  // slope: of (y - mean)

  template <class T>
  __device__ __forceinline__ RowGradient(const RowPass<T>& p, int col) {
    if (p.sums == nullptr) {
#pragma unroll
      for (int i = 0; i < kRowVec; ++i) mean_dz[i] = slope[i] = 0;
      return;
    }
    float count[kRowVec], rstd[kRowVec];
    load_channels(p.stats + kRowCount * p.channels, col, count);
    load_channels(p.stats + kRowRstd * p.channels, col, rstd);
    load_channels(p.sums, col, mean_dz);
    load_channels(p.sums + p.channels, col, slope);
#pragma unroll
    for (int i = 0; i < kRowVec; ++i) {
      const float some = max(count[i], 1.f);
      mean_dz[i] /= some;
      slope[i] *= rstd[i] / some;
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    edge_rows_backward_kernel(const __grid_constant__ RowPass<T> p) {
  __shared__ typename RowQueue<T, 2>::Storage storage;
  const RowPlace at(p.grid, p.channels);
  if (!at.active) return;
  const RowNorm norm(p.stats, p.channels, at.col);
  const RowGradient gradient(p, at.col);
  RowQueue<T, 2> queue(storage, {p.da, p.y}, p.valid, p.channels, at.col);
  queue.for_each(p.grid, at, p.rows, [&](int64_t row, int u) {
    const auto da = queue.row(u, 0), ys = queue.row(u, 1);
    float dy[kRowVec];
#pragma unroll
    for (int i = 0; i < kRowVec; ++i) {
      const float y = to_compute(ys.value[i]);
      float dz = row_gradient(to_compute(da.value[i]), norm.z(y, i), p.slope);
      if (p.sums) dz = dz - gradient.mean_dz[i] - gradient.slope[i] * (y - norm.mean[i]);
      dy[i] = queue.counts(u) ? dz * norm.scale[i] : 0.f;
    }
    store_row(p.out, row, p.channels, at.col, dy);
  });
}

// The gradient of groups goes to the row of each channel that won.
template <class T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    edge_rows_pool_backward_kernel(const __grid_constant__ RowPass<T> p) {
  using Queue = RowQueue<T, 1>;
  __shared__ typename Queue::Storage storage;
  const RowPlace at(p.grid, p.channels);
  if (!at.active) return;
  const RowNorm norm(p.stats, p.channels, at.col);
  const RowGradient gradient(p, at.col);
  const int own = at.ty % p.split, per_step = p.grid.threads_y / p.split;
  const int64_t step = int64_t{p.grid.row_blocks} * per_step;
  RowOfGroup next{int64_t{at.row_block} * per_step + at.ty / p.split, own};
  Queue queue(storage, {p.sums ? p.y : nullptr}, p.valid, p.channels, at.col);
  const auto row_of = [&](int u) { return next.row(u, p.split, p.k, p.rows); };
  queue.ask(row_of);
  while (next.group < p.rows) {
    const int64_t group = next.group;
    float dz[kRowVec];
    int places[kRowVec];
    load_places(p, at, group, places);
    const auto da = load_row(p.da, group, p.channels, at.col);
    const auto best = load_row(p.best, group, p.channels, at.col);
#pragma unroll
    for (int i = 0; i < kRowVec; ++i) {
      const float z = norm.z(to_compute(best.value[i]), i);
      dz[i] = row_gradient(to_compute(da.value[i]), z, p.slope) - gradient.mean_dz[i];
    }
    while (next.group == group) {
      const int first = next.k;
      next.advance(Queue::kRows * p.split, own, p.k, step);
      queue.advance(row_of);
#pragma unroll
      for (int u = 0; u < Queue::kRows; ++u) {
        const int k = first + u * p.split;
        if (k >= p.k) break;
        const auto y = queue.row(u, 0);
        float dy[kRowVec];
#pragma unroll
        for (int i = 0; i < kRowVec; ++i) {
          float centred = places[i] == k ? dz[i] : -gradient.mean_dz[i];
          if (p.sums) centred -= gradient.slope[i] * (to_compute(y.value[i]) - norm.mean[i]);
          dy[i] = queue.counts(u) ? centred * norm.scale[i] : 0.f;
        }
        store_row(p.out, group * p.k + k, p.channels, at.col, dy);
      }
    }
  }
  wait_for_all_copies();
}

}  // namespace fusedops
