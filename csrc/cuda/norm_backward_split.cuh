// Gradients of layer_norm and rms_norm where rows and columns are read apart: blocks for dx, a row
// each, and blocks for the column sums, side by side in one launch. For small tensors, where the
// number of launches counts, and for rows that no team can hold. The last kernel adds partial rows.
#pragma once

#include "cuda/norm_backward.cuh"

namespace fusedops {

inline constexpr int kSplitThreads = 512;
inline constexpr int kSplitX = 32, kSplitY = kSplitThreads / kSplitX;  // columns, rows at a time

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

// Of a chunk of dy.
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

// dx of the rows first, first + step, ..., each read twice.
template <bool kRms, class T, class W, class S>
__device__ __forceinline__ void split_rows(const NormBackward<T, W, S>& p, int64_t first,
                                           int64_t step, int64_t rows, int64_t n) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>;
  __shared__ RowSlot<C> slots[2 * kSplitThreads / 32];
  RowTeam<C> team(RowLayout{rows, 0, 32, 1, 0}, slots);
  for (int64_t row = first; row < rows; row += step) {
    const T* x = p.x + row * p.x_stride;
    const S* dy = p.dy + row * p.dy_stride;
    const RowMoments<C> stats = load_stats<kRms>(p, row, rows);
    const int shift = static_cast<int>(row * n % kVec);
    const bool aligned = shift == 0 && reinterpret_cast<uintptr_t>(p.weight) % 16 == 0;
    C sum[2] = {};
    stream_row<T, kVec>(x, n, shift, team.index(), team.size(), [&](const auto& chunk) {
      const auto d = load_like(dy, chunk);
      C weight[kVec] = {};
      load_weight(p.weight, aligned, chunk, weight);
      chunk.each([&](int e) {
        const C g = d.at(e) * weight[e];
        sum[0] += g * stats.normal(chunk.vec.at(e));
        sum[1] += g;
      });
    });
    team.sum_all(sum);
    const C mean_gx = sum[0] / static_cast<C>(n);
    const C mean_g = kRms ? C{0} : sum[1] / static_cast<C>(n);
    stream_row<T, kVec>(x, n, shift, team.index(), team.size(), [&](const auto& chunk) {
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
}

// kSplitX columns over the rows part, part + parts, ... of every kSplitY: into the results where
// that is all of them, else into a partial row.
template <bool kRms, class T, class W, class S>
__device__ __forceinline__ void split_columns(const NormBackward<T, W, S>& p, const NormSums& out,
                                              int64_t group, int part, int64_t rows, int64_t n) {
  using C = Compute<T>;
  __shared__ C shared[2][kSplitY][kSplitX];
  const int x = threadIdx.x % kSplitX, y = threadIdx.x / kSplitX;
  const int64_t column = group * kSplitX + x;
  C dweight = 0, dbias = 0;
  if (column < n) {
#pragma unroll 8
    for (int64_t row = int64_t{part} * kSplitY + y; row < rows;
         row += int64_t{p.partials} * kSplitY) {
      const RowMoments<C> stats = load_stats<kRms>(p, row, rows);
      const C d = to_compute(p.dy[row * p.dy_stride + column]);
      dweight += d * stats.normal(to_compute(p.x[row * p.x_stride + column]));
      dbias += d;
    }
  }
  shared[0][y][x] = dweight;
  shared[1][y][x] = dbias;
  __syncthreads();
  const int64_t mine = group * kSplitX + threadIdx.x % kSplitX;
  if (y > 1 || (kRms && y == 1) || mine >= n) return;
  C sum = 0;
#pragma unroll
  for (int i = 0; i < kSplitY; ++i) sum += shared[y][i][x];
  void* const result = y == 0 ? out.dweight : out.dbias;
  if (p.partials > 1) {
    p.partial[(int64_t{y} * p.partials + part) * n + mine] = sum;
  } else if (result != nullptr) {
    store_parameter<T>(result, out.wide, mine, sum);
  }
}

// Blocks below row_blocks: dx; the others: column sums.
template <bool kRms, class T, class W, class S>
__global__ void __launch_bounds__(kSplitThreads, 2)
    norm_backward_split_kernel(NormBackward<T, W, S> p, NormSums out, int64_t row_blocks,
                               int64_t rows, int64_t n) {
  wait_for_predecessor();
  if (blockIdx.x < row_blocks) {
    split_rows<kRms>(p, blockIdx.x, row_blocks, rows, n);
  } else {
    const int64_t block = blockIdx.x - row_blocks;
    split_columns<kRms>(p, out, block / p.partials, static_cast<int>(block % p.partials), rows, n);
  }
}

// ---- second stage ----

inline constexpr int kPartialThreads = 512;

// out[c] = sum over the partial rows in a fixed order; blockIdx.y 0: dweight, 1: dbias. A thread
// has kPer columns and every blockDim.y-th row.
template <class T, int kPer>
__global__ void __launch_bounds__(kPartialThreads)
    norm_partial_sum_kernel(const Compute<T>* partial, NormSums out, int partials, int64_t n) {
  using C = Compute<T>;
  __shared__ double shared[kPer][kPartialThreads];
  wait_for_predecessor();
  void* const to = blockIdx.y == 0 ? out.dweight : out.dbias;
  if (to == nullptr) return;
  const int64_t column = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kPer;
  const C* from = partial + blockIdx.y * (int64_t{partials} * n) + column;
  double sum[kPer] = {};  // NOTE: a chain of fp32 sums would be less exact than torch's tree
  if (column < n) {
#pragma unroll 8
    for (int64_t row = threadIdx.y; row < partials; row += blockDim.y) {
      const auto some = *reinterpret_cast<const Vec<C, kPer>*>(from + row * n);
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
  if (threadIdx.y > 0 || column >= n) return;
#pragma unroll
  for (int i = 0; i < kPer; ++i) store_parameter<T>(to, out.wide, column + i, sum[i]);
}

}  // namespace fusedops
