// Gradients of layer_norm and rms_norm in one pass over x and dy: dx, and the column sums that make
// dweight and dbias, which every thread keeps in registers while its team walks over rows. Each
// block writes one partial row; a second kernel adds those in a fixed order. No atomics.
//
//   xhat = (x - mean) * rstd, g = dy * weight
//   dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd, without mean(g) for rms_norm
//   dweight = sum over rows of dy * xhat, dbias = sum over rows of dy
#pragma once

#include "cuda/norm.cuh"

namespace fusedops {

template <class T, class W, class S>
struct NormBackward {
  using C = Compute<T>;
  const S* dy;         // [rows, n], rows dy_stride apart
  const T* x;          // [rows, n], rows x_stride apart
  const T* dresidual;  // [rows, n] added to dx, or null
  const W* weight;     // [n] or null
  const C* mean;       // [rows]; null for rms_norm
  const C* rstd;       // [rows]
  T* dx;               // [rows, n] or null
  C* partial;          // [2, partials, n]: of dweight, of dbias; null where neither is asked for
  int64_t dy_stride, x_stride, dresidual_stride;
  int partials;
};

// The most chunks of a row that a thread holds: their column sums are in registers.
template <bool kRms, class T, class W, bool kRagged>
inline constexpr int kNormBackwardChunks =
    (sizeof(W) > sizeof(T) ? 2 : 4) + (kRms && kRagged ? 1 : 0);

// Words of a row that a thread holds: x, dy (two for fp32 beside half), dresidual.
template <class T, class S>
constexpr int norm_backward_words(bool dresidual) {
  return 1 + static_cast<int>(sizeof(S) / sizeof(T)) + (dresidual ? 1 : 0);
}

template <class T, class W, class S, class C = Compute<T>>
__device__ __forceinline__ RowMoments<C> load_stats(const NormBackward<T, W, S>& p, int64_t row,
                                                    int64_t rows) {
  if (row >= rows) return {0, 0};
  return {p.mean == nullptr ? C{0} : p.mean[row], p.rstd[row]};
}

// Sums of a team's rows per column, of the columns that a thread holds.
template <class C, int kVec, int kCount, bool kRms>
struct ColumnSums {
  C weight[kCount][kVec] = {};
  C bias[kRms ? 1 : kCount][kVec] = {};
};

// A team per block or cluster: its columns straight into the partial row.
template <class C, int kVec, int kCount, bool kRms, bool kRagged>
__device__ __forceinline__ void store_sums(const ColumnSums<C, kVec, kCount, kRms>& sums,
                                           const RowSlice<kVec, kCount, kRagged>& slice, C* dweight,
                                           C* dbias) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int column = slice.column(i);
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      if (!slice.some(i) || e < slice.lo(i) || e >= slice.hi(i)) continue;
      dweight[column + e] = sums.weight[i][e];
      if constexpr (!kRms) dbias[column + e] = sums.bias[i][e];
    }
  }
}

// Teams inside a warp: one after the other into shared memory.
template <class C, int kVec, int kCount, bool kRms, bool kRagged>
__device__ __forceinline__ void gather_sums(const ColumnSums<C, kVec, kCount, kRms>& sums,
                                            const RowSlice<kVec, kCount, kRagged>& slice, int lanes,
                                            int n, C* shared, C* dweight, C* dbias) {
  constexpr int kSets = kRms ? 1 : 2;
  __syncthreads();
  for (int c = threadIdx.x; c < kSets * n; c += blockDim.x) shared[c] = 0;
  const int teams = static_cast<int>(blockDim.x) / lanes;
  for (int team = 0; team < teams; ++team) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) / lanes != team) continue;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int column = slice.column(i);
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        if (!slice.some(i) || e < slice.lo(i) || e >= slice.hi(i)) continue;
        shared[column + e] += sums.weight[i][e];
        if constexpr (!kRms) shared[n + column + e] += sums.bias[i][e];
      }
    }
  }
  __syncthreads();
  for (int c = threadIdx.x; c < n; c += blockDim.x) {
    dweight[c] = shared[c];
    if constexpr (!kRms) dbias[c] = shared[n + c];
  }
}

template <bool kRms, class T, class W, class S, bool kRagged>
__global__ void __launch_bounds__(kRowThreads)
    norm_backward_kernel(NormBackward<T, W, S> p, RowLayout layout) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>, kMax = kNormBackwardChunks<kRms, T, W, kRagged>;
  constexpr int kDyWords = sizeof(S) / sizeof(T);
  extern __shared__ uint4 shared[];
  wait_for_predecessor();
  RowTeam<C> team(layout, shared);
  RowSlice<kVec, kMax, kRagged> slice(team, layout);
  const int words = norm_backward_words<T, S>(p.dresidual != nullptr);
  uint4* const ring_memory = shared + row_slot_bytes<C>(layout.cluster, blockDim.x) / 16;
  RowRing<kRowStages - 1> ring(ring_memory, team, layout, words);

  const auto fetch = [&](int64_t base, int stage) {
    const int64_t row = base + team.sub();
    const bool active = row < layout.rows, last = row == layout.rows - 1;
    const RowStream<T> x{p.x + row * p.x_stride, 0};
    const RowStream<S> dy{p.dy + row * p.dy_stride, 1};
    slice.hold();
    if (p.dresidual == nullptr) {
      ring.fetch(stage, active, last, slice, x, dy);
    } else {
      ring.fetch(stage, active, last, slice, x, dy,
                 RowStream<T>{p.dresidual + row * p.dresidual_stride, 1 + kDyWords});
    }
  };
#pragma unroll
  for (int s = 0; s < kRowStages - 1; ++s) fetch(team.first() + s * team.stride(), s);

  NormParameter<W, kVec, kMax> weight(p.weight, slice, 1.0f);
  ColumnSums<C, kVec, kMax, kRms> sums;
  const C inverse_n = C{1} / static_cast<C>(layout.n);
  int stage = 0;
  RowMoments<C> next = load_stats(p, team.first() + team.sub(), layout.rows);
  for (int64_t base = team.first(); base < layout.rows; base += team.stride()) {
    const int64_t row = base + team.sub();
    const bool active = row < layout.rows;
    const RowMoments<C> stats = next;
    next = load_stats(p, row + team.stride(), layout.rows);
    ring.wait(stage);
    slice.hold();
    ring.fill(stage, 0, from_compute<T>(C{0}), slice);
    ring.fill(stage, 1, from_compute<S>(C{0}), slice);  // adds nothing to any sum
    C gx[2] = {}, gs[2] = {};
    hold(weight.value);
    if (active) {
#pragma unroll
      for (int i = 0; i < kMax; ++i) {
        if (i >= slice.count()) break;
        const auto x = ring.template read<T, kVec>(stage, 0, i);
        const auto dy = ring.template read<S, kVec>(stage, 1, i);
#pragma unroll
        for (int e = 0; e < kVec; ++e) {
          const C d = dy.at(e);
          const C xhat = kRms ? x.at(e) * stats.rstd : stats.normal(x.at(e));
          const C g = d * weight.template at<C>(i, e);
          gx[e % 2] += g * xhat;
          if constexpr (!kRms) gs[e % 2] += g;
          sums.weight[i][e] += d * xhat;
          if constexpr (!kRms) sums.bias[i][e] += d;
        }
      }
    }
    // NOTE: without dx too: a row behind the barrier in it, its stage is free.
    C mean_gx = sum_of(gx), mean_g = 0;
    if constexpr (kRms) {
      mean_gx = team.sum(mean_gx);
    } else {
      mean_g = sum_of(gs);
      team.sum(mean_gx, mean_g);
    }
    team.join();
    fetch(base + (kRowStages - 1) * team.stride(), previous_stage(stage));
    if (p.dx != nullptr) {
      hold(weight.value);
      slice.hold();
      mean_gx *= -inverse_n * stats.rstd;
      mean_g *= -inverse_n * stats.rstd;
#pragma unroll
      for (int i = 0; i < kMax; ++i) {
        if (i >= slice.count() || !active) break;
        const auto x = ring.template read<T, kVec>(stage, 0, i);
        const auto dy = ring.template read<S, kVec>(stage, 1, i);
        C dx[kVec];
#pragma unroll
        for (int e = 0; e < kVec; ++e) {
          const C xhat = kRms ? x.at(e) * stats.rstd : stats.normal(x.at(e));
          const C g = dy.at(e) * weight.template at<C>(i, e);
          dx[e] = fma(g, stats.rstd, fma(xhat, mean_gx, mean_g));
        }
        if (p.dresidual != nullptr) {
          const auto more = ring.template read<T, kVec>(stage, 1 + kDyWords, i);
#pragma unroll
          for (int e = 0; e < kVec; ++e) dx[e] += more.at(e);
        }
        slice.store(i, p.dx + row * layout.n, dx);
      }
    }
    stage = next_stage(stage);
  }
  ring.drain();
  if (p.partial != nullptr) {
    const int64_t mine = int64_t{blockIdx.x} / (layout.cluster > 1 ? layout.cluster : 1);
    C* const dweight = p.partial + mine * layout.n;
    C* const dbias = dweight + int64_t{p.partials} * layout.n;
    if (team.in_warp()) {
      // NOTE: behind the barriers, whose memory nothing else may touch.
      C* const scratch = reinterpret_cast<C*>(
          ring_memory + row_barrier_bytes(static_cast<int>(blockDim.x) / 32) / 16);
      gather_sums(sums, slice, layout.lanes, layout.n, scratch, dweight, dbias);
    } else {
      store_sums(sums, slice, dweight, dbias);
    }
  }
  team.leave();
}

// ---- rows that no team can hold ----

// dx alone: a block per row, which reads its row twice.
template <bool kRms, class T, class W, class S>
__global__ void __launch_bounds__(kStreamThreads, kStreamBlocks)
    norm_backward_long_kernel(NormBackward<T, W, S> p, int64_t rows, int64_t n) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>;
  __shared__ RowSlot<C> slots[2 * kStreamThreads / 32];
  wait_for_predecessor();
  RowTeam<C> team(RowLayout{rows, 0, 32, 1, 0}, slots);
  for (int64_t row = team.first(); row < rows; row += team.stride()) {
    const T* x = p.x + row * p.x_stride;
    const S* dy = p.dy + row * p.dy_stride;
    const RowMoments<C> stats = load_stats(p, row, rows);
    const int shift = static_cast<int>(row * n % kVec);
    const auto gradient = [&](int64_t column, C value) {
      return p.weight == nullptr ? value : value * static_cast<C>(to_compute(p.weight[column]));
    };
    C mean_gx = 0, mean_g = 0;
    stream_row<T, kVec>(x, n, shift, team.index(), team.size(), [&](const auto& chunk) {
      const auto d = load_like(dy, chunk);
      chunk.each([&](int e) {
        const C g = gradient(chunk.column + e, d.at(e));
        mean_gx += g * (chunk.vec.at(e) - stats.mean) * stats.rstd;
        mean_g += g;
      });
    });
    team.sum(mean_gx, mean_g);
    mean_gx /= static_cast<C>(n);
    mean_g = kRms ? C{0} : mean_g / static_cast<C>(n);
    stream_row<T, kVec>(x, n, shift, team.index(), team.size(), [&](const auto& chunk) {
      const auto d = load_like(dy, chunk);
      C dx[kVec] = {};
      chunk.each([&](int e) {
        const C xhat = (chunk.vec.at(e) - stats.mean) * stats.rstd;
        const C g = gradient(chunk.column + e, d.at(e));
        dx[e] = (g - mean_g - xhat * mean_gx) * stats.rstd;
        if (p.dresidual != nullptr) {
          dx[e] += to_compute(p.dresidual[row * p.dresidual_stride + chunk.column + e]);
        }
      });
      store_like(p.dx + row * n, chunk, dx);
    });
  }
}

// The partial rows alone: block (x, y) sums column x over the rows y, y + partials, ...
template <bool kRms, class T, class W, class S>
__global__ void __launch_bounds__(kStreamThreads, kStreamBlocks)
    norm_partial_long_kernel(NormBackward<T, W, S> p, int64_t rows, int64_t n) {
  using C = Compute<T>;
  wait_for_predecessor();
  const int64_t column = int64_t{blockIdx.x} * kStreamThreads + threadIdx.x;
  if (column >= n) return;
  C dweight = 0, dbias = 0;
#pragma unroll 4
  for (int64_t row = blockIdx.y; row < rows; row += p.partials) {
    const RowMoments<C> stats = load_stats(p, row, rows);
    const C d = to_compute(p.dy[row * p.dy_stride + column]);
    dweight += d * (to_compute(p.x[row * p.x_stride + column]) - stats.mean) * stats.rstd;
    dbias += d;
  }
  C* const mine = p.partial + int64_t{blockIdx.y} * n + column;
  *mine = dweight;
  if constexpr (!kRms) mine[int64_t{p.partials} * n] = dbias;
}

// ---- second stage ----

inline constexpr int kPartialX = 32, kPartialY = 16;

// out[c] = sum over the partial rows in a fixed order; blockIdx.y 0: dweight, 1: dbias.
template <class C, class Out>
__global__ void __launch_bounds__(kPartialX* kPartialY)
    norm_partial_sum_kernel(const C* partial, Out* dweight, Out* dbias, int partials, int64_t n) {
  __shared__ double shared[kPartialY][kPartialX];
  wait_for_predecessor();
  Out* const out = blockIdx.y == 0 ? dweight : dbias;
  if (out == nullptr) return;
  const C* from = partial + blockIdx.y * (int64_t{partials} * n);
  const int64_t column = int64_t{blockIdx.x} * kPartialX + threadIdx.x;
  double sum = 0;  // NOTE: a chain of fp32 sums would be less exact than torch's tree
  if (column < n) {
#pragma unroll 8
    for (int64_t row = threadIdx.y; row < partials; row += kPartialY) sum += from[row * n + column];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < n) {
    for (int y = 1; y < kPartialY; ++y) sum += shared[y][threadIdx.x];
    out[column] = from_compute<Out>(static_cast<Compute<Out>>(sum));
  }
}

}  // namespace fusedops
