// Gradients of layer_norm and rms_norm where rows and columns are read apart: blocks for dx, one or
// a cluster for a row, and blocks for the column sums, side by side in one launch. For small
// tensors, where the number of launches counts, and for rows that no team can hold. The last kernel
// adds partial rows.
#pragma once

#include "csrc/cuda/rows/norm/norm_backward.cuh"

namespace fusedops {

inline constexpr int kSplitThreads = 512;
// Rows of a block of columns, at a time.
template <bool kClusters>
inline constexpr int kSplitAtOnce = kClusters ? 1 : 16;

struct SplitLayout {
  int64_t rows, n;
  int64_t row_blocks;
  int cluster;  // blocks of a row
};

// dweight and dbias: in the parameters' dtype, null where nobody asked.
struct NormSums {
  void* dweight;
  void* dbias;
  bool wide;  // float beside a half x
};

template <class T, class C>
__device__ __forceinline__ void store_parameter(void* out, bool wide, int64_t at, C value) {
  if (wide) {
    static_cast<float*>(out)[at] = static_cast<float>(value);
  } else {
    static_cast<T*>(out)[at] = from_compute<T>(static_cast<Compute<T>>(value));
  }
}

// Loads the weights that belong to a chunk of dy.
template <class W, int kVec, class C, class L>
__device__ __forceinline__ void load_weight(const W* weight, bool aligned,
                                            const StreamChunk<L, kVec>& like, C (&value)[kVec]) {
  if (weight == nullptr) {
#pragma unroll
    for (int e = 0; e < kVec; ++e) value[e] = 1;
  } else if (aligned && like.full()) {
    const auto packed = load_packed<W, kVec>(weight + like.column);
#pragma unroll
    for (int e = 0; e < kVec; ++e) value[e] = packed.at(e);
  } else {
    like.each([&](int e) { value[e] = static_cast<C>(to_compute(weight[like.column + e])); });
  }
}

// Adds g * xhat and g of the chunks index, index + size, ... of a row.
template <bool kRms, class T, class W, class S, class C>
__device__ __forceinline__ void add_row_sums(const NormBackward<T, W, S>& p,
                                             const RowMoments<C>& stats, int64_t row, int64_t n,
                                             int index, int size, C (&sum)[2]) {
  constexpr int kVec = kChunkOf<T>;
  const S* dy = p.dy + row * p.dy_stride;
  const int shift = static_cast<int>(row * n % kVec);
  const bool aligned = shift == 0 && reinterpret_cast<uintptr_t>(p.weight) % 16 == 0;
  stream_row<T, kVec>(p.x + row * p.x_stride, n, shift, index, size, [&](const auto& chunk) {
    const auto d = load_like(dy, chunk);
    C weight[kVec] = {};
    load_weight(p.weight, aligned, chunk, weight);
    chunk.each([&](int e) {
      const C g = d.at(e) * weight[e];
      sum[0] += g * stats.normal(chunk.vec.at(e));
      sum[1] += g;
    });
  });
}

// dx of the rows of a team, each read twice.
// NOTE: code that does not know the number of blocks takes .4 us more for small tensors.
template <bool kClusters, bool kRms, class T, class W, class S>
__device__ __forceinline__ void split_rows(const NormBackward<T, W, S>& p,
                                           const SplitLayout& layout) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>;
  constexpr int kBytes = row_slot_bytes<C>(kClusters ? kRowCluster : 1, kSplitThreads);
  __shared__ alignas(16) uint8_t slots[kBytes];
  const int cluster = kClusters ? layout.cluster : 1;
  const int64_t rows = layout.rows, n = layout.n, teams = layout.row_blocks / cluster;
  RowTeam<C> team(RowLayout{rows, 0, 32, cluster, 0}, slots);
  const int index = team.rank() * kSplitThreads + static_cast<int>(threadIdx.x);
  const int size = cluster * kSplitThreads;
  for (int64_t row = team.first(); row < rows; row += teams) {
    const T* x = p.x + row * p.x_stride;
    const S* dy = p.dy + row * p.dy_stride;
    const RowMoments<C> stats = load_stats<kRms>(p, row, rows);
    const int shift = static_cast<int>(row * n % kVec);
    const bool aligned = shift == 0 && reinterpret_cast<uintptr_t>(p.weight) % 16 == 0;
    C sum[2] = {};
    add_row_sums<kRms>(p, stats, row, n, index, size, sum);
    team.sum_all(sum);
    const C mean_gx = sum[0] / static_cast<C>(n);
    const C mean_g = kRms ? C{0} : sum[1] / static_cast<C>(n);
    stream_row<T, kVec>(x, n, shift, index, size, [&](const auto& chunk) {
      const auto d = load_like(dy, chunk);
      C weight[kVec] = {}, dx[kVec] = {};
      load_weight(p.weight, aligned, chunk, weight);
      chunk.each([&](int e) {
        const C xhat = stats.normal(chunk.vec.at(e));
        dx[e] = (d.at(e) * weight[e] - mean_g - xhat * mean_gx) * stats.rstd;
        if (p.dresidual != nullptr) {
          dx[e] += to_compute(p.dresidual[row * p.dresidual_stride + chunk.column + e]);
        }
      });
      store_like(p.dx + row * n, chunk, dx);
    });
  }
  team.leave();
}

// Some columns over the rows part, part + parts, ... of every kAtOnce: into the results where
// that is all of them, else into a partial row.
template <int kAtOnce, bool kRms, class T, class W, class S>
__device__ __forceinline__ void split_columns(const NormBackward<T, W, S>& p, const NormSums& out,
                                              const SplitLayout& layout, int64_t block) {
  using C = Compute<T>;
  constexpr int kColumns = kSplitThreads / kAtOnce;
  __shared__ C shared[2][kAtOnce][kColumns];
  const int x = threadIdx.x % kColumns, y = threadIdx.x / kColumns;
  const int64_t column = block / p.partials * kColumns + x, part = block % p.partials;
  C dweight = 0, dbias = 0;
  if (column < layout.n) {
#pragma unroll 8
    for (int64_t row = part * kAtOnce + y; row < layout.rows; row += p.partials * kAtOnce) {
      const RowMoments<C> stats = load_stats<kRms>(p, row, layout.rows);
      const C d = to_compute(p.dy[row * p.dy_stride + column]);
      dweight += d * stats.normal(to_compute(p.x[row * p.x_stride + column]));
      dbias += d;
    }
  }
  shared[0][y][x] = dweight;
  shared[1][y][x] = dbias;
  __syncthreads();
  if (column >= layout.n) return;
  for (int which = y; which < (kRms ? 1 : 2); which += kAtOnce) {
    C sum = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sum += shared[which][i][x];
    void* const result = which == 0 ? out.dweight : out.dbias;
    if (p.partials > 1) {
      p.partial[(int64_t{which} * p.partials + part) * p.partial_pitch + column] = sum;
    } else if (result != nullptr) {
      store_parameter<T>(result, out.wide, column, sum);
    }
  }
}

// Blocks below row_blocks: dx; the others: column sums.
template <bool kClusters, bool kRms, class T, class W, class S>
__global__ void __launch_bounds__(kSplitThreads, kClusters ? 1 : 2)
    norm_backward_split_kernel(NormBackward<T, W, S> p, NormSums out, SplitLayout layout) {
  wait_for_predecessor();
  if (blockIdx.x < layout.row_blocks) {
    split_rows<kClusters, kRms>(p, layout);
  } else {
    split_columns<kSplitAtOnce<kClusters>, kRms>(p, out, layout, blockIdx.x - layout.row_blocks);
  }
}

// ---- second stage ----

inline constexpr int kPartialThreads = 512;

// out[c] = sum over the partial rows, `pitch` apart, in a fixed order; blockIdx.y 0: dweight, 1:
// dbias. A thread has 16 bytes of every blockDim.y-th row.
template <class T>
__global__ void __launch_bounds__(kPartialThreads)
    norm_partial_sum_kernel(const Compute<T>* partial, NormSums out, int partials, int64_t n,
                            int64_t pitch) {
  using C = Compute<T>;
  constexpr int kPer = kChunkOf<C>;
  __shared__ double shared[kPer][kPartialThreads];
  wait_for_predecessor();
  void* const to = blockIdx.y == 0 ? out.dweight : out.dbias;
  if (to == nullptr) return;
  const int64_t column = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kPer;
  const C* from = partial + blockIdx.y * (partials * pitch) + column;
  double sum[kPer] = {};  // NOTE: a chain of fp32 sums would be less exact than torch's tree
  if (column < n) {
#pragma unroll 8
    for (int64_t row = threadIdx.y; row < partials; row += blockDim.y) {
      const auto some = *reinterpret_cast<const Vec<C, kPer>*>(from + row * pitch);
#pragma unroll
      for (int i = 0; i < kPer; ++i) sum[i] += some.value[i];
    }
  }
  const int mine = threadIdx.y * blockDim.x + threadIdx.x;
  for (unsigned rows = blockDim.y; rows > 1; rows /= 2) {
    if (threadIdx.y < rows) {
#pragma unroll
      for (int i = 0; i < kPer; ++i) shared[i][mine] = sum[i];
    }
    __syncthreads();
    if (threadIdx.y < rows / 2) {
#pragma unroll
      for (int i = 0; i < kPer; ++i) sum[i] += shared[i][mine + rows / 2 * blockDim.x];
    }
    __syncthreads();
  }
  if (threadIdx.y > 0) return;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    if (column + i < n) store_parameter<T>(to, out.wide, column + i, sum[i]);
  }
}

}  // namespace fusedops
