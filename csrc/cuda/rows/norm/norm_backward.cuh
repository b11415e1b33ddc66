// Gradients of layer_norm and rms_norm in one pass over x and dy: dx, and the column sums that make
// dweight and dbias, which every thread keeps in registers while its team walks over rows. Each
// block writes one partial row; a second kernel adds those in a fixed order. No atomics.
//
//   xhat = (x - mean) * rstd, g = dy * weight
//   dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd, without mean(g) for rms_norm
//   dweight = sum over rows of dy * xhat, dbias = sum over rows of dy
#pragma once

#include "csrc/cuda/rows/norm/norm.cuh"

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
  C* partial;          // [2, partials] rows: of dweight, of dbias; null where neither is asked for
  int64_t dy_stride, x_stride, dresidual_stride;
  int64_t partial_pitch;  // elements of a partial row: n, and some for aligned loads
  int partials;
};

// How a thread works through a row: up to kChunks chunks of it. Column sums take registers per
// chunk, what a row's threads have to agree on takes time per row.
// NOTE: local memory would wait for what global loads are under way: nothing may be spilled.
struct WarpStep {
  static constexpr int kChunks = 2, kRegisters = 112;
  static constexpr bool kBlocks = false;  // a team is a block: fewer registers
};
struct BlockStep {
  static constexpr int kChunks = 2, kRegisters = 112;
  static constexpr bool kBlocks = true;
};

// Words of a row that a thread holds: x, dy (two for fp32 beside half), dresidual.
template <class T, class S>
constexpr int norm_backward_words(bool dresidual) {
  return 1 + static_cast<int>(sizeof(S) / sizeof(T)) + (dresidual ? 1 : 0);
}

template <bool kRms, class T, class W, class S, class C = Compute<T>>
__device__ __forceinline__ RowMoments<C> load_stats(const NormBackward<T, W, S>& p, int64_t row,
                                                    int64_t rows) {
  if (row >= rows) return {0, 0};
  return {kRms ? C{0} : p.mean[row], p.rstd[row]};
}

// Sums of a team's rows per column, of the columns that a thread holds.
template <class C, int kVec, int kCount, bool kRms>
struct ColumnSums {
  C weight[kCount][kVec] = {};
  C bias[kRms ? 1 : kCount][kVec] = {};
};

// A team per block or cluster, rows that begin at a chunk: its chunks straight into the partial
// row.
template <class C, int kVec, int kCount>
__device__ __forceinline__ void store_sums(const C (&sums)[kCount][kVec],
                                           const RowSlice<kVec, kCount, false>& slice, C* row) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (!slice.some(i)) break;
    store_packed(row + slice.column(i), pack<C>(sums[i]));
  }
}

// The same where whole chunks [begin, end) of a block lie anywhere beside 16 bytes of the partial
// row: by way of shared memory, since elements one by one take eight times the accesses.
template <class C, int kVec, int kCount>
__device__ __forceinline__ void store_loose_sums(const C (&sums)[kCount][kVec],
                                                 const RowSlice<kVec, kCount, false>& slice,
                                                 bool holds, int begin, int end, C* shared, C* row,
                                                 bool add = false) {
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (!holds || !slice.some(i)) break;
#pragma unroll
    for (int e = 0; e < kVec; ++e) shared[slice.column(i) - begin + e] = sums[i][e];
  }
  __syncthreads();
  constexpr int kAtOnce = 8;  // to add, which waits for memory
  const int step = static_cast<int>(blockDim.x);
  for (int c = begin + static_cast<int>(threadIdx.x); c < end; c += kAtOnce * step) {
    C old[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (add && c + i * step < end) old[i] = row[c + i * step];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (c + i * step < end) row[c + i * step] = old[i] + shared[c + i * step - begin];
    }
  }
}

// Teams of `size` threads, lanes of a warp or a block of a few: each writes a row of its own to
// shared memory, and the threads of a column add those in the order of teams. NOTE: the ring's
// memory holds the rows of all teams: a chunk of x and dy on its way takes 96 bytes, its sums 64 or
// fewer.
template <class C, int kVec, int kCount, bool kRms, bool kRagged>
__device__ __forceinline__ void gather_sums(const ColumnSums<C, kVec, kCount, kRms>& sums,
                                            const RowSlice<kVec, kCount, kRagged>& slice, int size,
                                            int n, C* shared, C* dweight, C* dbias) {
  constexpr int kSets = kRms ? 1 : 2;
  static_assert(kSets * kVec * sizeof(C) <= kRowStages * 2 * 16);
  const int teams = static_cast<int>(blockDim.x) / size, width = kSets * n;
  C* const mine = shared + static_cast<int>(threadIdx.x) / size * width;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int column = slice.column(i);
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      if (!slice.some(i) || e < slice.lo(i) || e >= slice.hi(i)) continue;
      mine[column + e] = sums.weight[i][e];
      if constexpr (!kRms) mine[n + column + e] = sums.bias[i][e];
    }
  }
  __syncthreads();
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    C sum = 0;
#pragma unroll 8
    for (int team = 0; team < teams; ++team) sum += shared[team * width + c];
    if (kRms || c < n) {
      dweight[c] = sum;
    } else {
      dbias[c - n] = sum;
    }
  }
}

// dx of an element; slope: -mean(g * xhat) * rstd^2, rest: -mean(g) * rstd, unless kRms.
template <bool kRms, class T, class C>
__device__ __forceinline__ C norm_dx(C x, C g, const RowMoments<C>& stats, C slope, C rest) {
  C low = x * slope;
  if constexpr (!kRms) {
    // NOTE: exact enough for halves, and one instruction less.
    low = sizeof(T) == 2 ? fma(x, slope, fma(-stats.mean, slope, rest))
                         : fma(x - stats.mean, slope, rest);
  }
  return fma(g, stats.rstd, low);
}

// The elements of a row in front of its whole chunks and behind them, fewer than two chunks: one
// for each of some threads, straight from memory, a row ahead.
template <bool kRms, class T, class S, class C>
struct EdgeElement {
  bool here = false;
  int column = 0;
  C weight = 1, dweight = 0, dbias = 0;
  C x = 0, dy = 0, more = 0;  // of the row in work
  T next_x{}, next_more{};
  S next_dy{};

  // Rows have n elements, and their whole chunks are the `inner` behind the first `head`.
  // NOTE: in the last warp, since the first one asks for rows.
  __device__ __forceinline__ EdgeElement(const RowTeam<C>& team, int head, int inner, int n) {
    const int mine = static_cast<int>(threadIdx.x) - (static_cast<int>(blockDim.x) - 32);
    here = team.rank() == 0 && mine >= 0 && mine < n - inner;
    column = mine < head ? mine : inner + mine;
  }

  template <class W>
  __device__ __forceinline__ void fetch(const NormBackward<T, W, S>& p, int64_t row, int64_t rows) {
    if (!here || row >= rows) return;
    next_x = p.x[row * p.x_stride + column];
    next_dy = p.dy[row * p.dy_stride + column];
    if (p.dresidual != nullptr) next_more = p.dresidual[row * p.dresidual_stride + column];
  }
  __device__ __forceinline__ void take() {
    x = to_compute(next_x);
    dy = to_compute(next_dy);
    more = to_compute(next_more);
  }
  template <int kValues>
  __device__ __forceinline__ void add(const RowMoments<C>& stats, C (&value)[kValues]) {
    if (!here) return;
    const C xhat = stats.normal(x), g = dy * weight;
    value[0] += g * xhat;
    dweight += dy * xhat;
    if constexpr (!kRms) {
      value[1] += g;
      dbias += dy;
    }
  }
  __device__ __forceinline__ void store(const RowMoments<C>& stats, C slope, C rest,
                                        T* dx_row) const {
    if (!here) return;
    const C dx = norm_dx<kRms, T>(x, dy * weight, stats, slope, rest);
    dx_row[column] = from_compute<T>(dx + more);
  }
  __device__ __forceinline__ void store_sums(C* dweight_row, C* dbias_row, bool add = false) const {
    if (!here) return;
    dweight_row[column] = dweight + (add ? dweight_row[column] : C{0});
    if constexpr (!kRms) dbias_row[column] = dbias + (add ? dbias_row[column] : C{0});
  }
};

// The sums of a row over a thread's chunks: g * xhat, then g; and the column sums.
template <bool kRms, class T, class S, class Ring, bool kMasks, class Weight, int kVec, int kChunks,
          class C>
__device__ __forceinline__ void sum_chunks(const Ring& ring, int stage,
                                           const RowSlice<kVec, kChunks, kMasks>& slice,
                                           const Weight& weight, const RowMoments<C>& stats,
                                           C (&value)[kRms ? 1 : 2],
                                           ColumnSums<C, kVec, kChunks, kRms>& sums) {
  constexpr bool kHalf = sizeof(typename Weight::Element) == 2;
  const C shift = -stats.mean * stats.rstd;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    auto x = ring.template read<T, kVec>(stage, 0, i);
    auto dy = ring.template read<S, kVec>(stage, 1, i);
    if (kMasks && !slice.full(i)) {  // adds nothing to any sum
      x.keep(slice.lo(i), slice.hi(i));
      dy.keep(slice.lo(i), slice.hi(i));
    }
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      const C d = dy.at(e);
      // NOTE: exact enough where dweight is half as well, and one instruction less.
      const C xhat = kRms    ? x.at(e) * stats.rstd
                     : kHalf ? fma(x.at(e), stats.rstd, shift)
                             : stats.normal(x.at(e));
      const C each = d * xhat;
      value[0] = fma(each, weight.template at<C>(i, e), value[0]);
      sums.weight[i][e] += each;
      if constexpr (!kRms) {
        value[1] = fma(d, weight.template at<C>(i, e), value[1]);
        sums.bias[i][e] += d;
      }
    }
  }
}

// dx of a thread's chunks.
template <bool kRms, class T, class S, class Ring, class MoreRing, bool kMasks, class Weight,
          int kVec, int kChunks, class C>
__device__ __forceinline__ void store_chunks(const Ring& ring, int stage,
                                             const RowSlice<kVec, kChunks, kMasks>& slice,
                                             const Weight& weight, const RowMoments<C>& stats,
                                             C slope, C rest, bool residual,
                                             const MoreRing& more_ring, int more_stage,
                                             int more_place, T* dx_row) {
  auto x = ring.template read<T, kVec>(stage, 0, 0);
  auto dy = ring.template read<S, kVec>(stage, 1, 0);
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    auto x_now = x;
    auto dy_now = dy;
    if (i + 1 < kChunks) {
      x = ring.template read<T, kVec>(stage, 0, i + 1);
      dy = ring.template read<S, kVec>(stage, 1, i + 1);
    }
    C dx[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      const C g = dy_now.at(e) * weight.template at<C>(i, e);
      dx[e] = norm_dx<kRms, T>(x_now.at(e), g, stats, slope, rest);
    }
    if (residual) {
      const auto more = more_ring.template read<T, kVec>(more_stage, more_place, i);
#pragma unroll
      for (int e = 0; e < kVec; ++e) dx[e] += more.at(e);
    }
    slice.store(i, dx_row, dx);
  }
}

// kRagged: rows begin or end inside of a chunk. Where a team is a block, its whole chunks go the
// way of even rows, and elements outside of them go one by one.
template <bool kRms, class T, class W, class S, bool kRagged, class Step>
__global__ void __maxnreg__(Step::kRegisters)
    norm_backward_kernel(NormBackward<T, W, S> p, RowLayout layout) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>, kMax = Step::kChunks;
  constexpr bool kEdges = kRagged && Step::kBlocks, kMasks = kRagged && !kEdges;
  extern __shared__ uint4 shared[];
  wait_for_predecessor();
  if constexpr (Step::kBlocks) {
    layout.lanes = 32;
    layout.cluster = 1;
  }
  RowTeam<C> team(layout, shared);
  const int n = layout.n;
  const int head = kEdges ? static_cast<int>(-team.first() * n & (kVec - 1)) : 0;
  if constexpr (kEdges) layout.n = (n - head) / kVec * kVec;
  RowSlice<kVec, kMax, kMasks> slice(team, layout);
  const int words = norm_backward_words<T, S>(p.dresidual != nullptr);
  uint4* const ring_memory = shared + row_slot_bytes<C>(layout.cluster, blockDim.x) / 16;
  RowRing<kRowStages - 1> ring(ring_memory, team, layout, words);

  // NOTE: 32 bits, since registers are short; the host sends no more rows than they count.
  const unsigned rows = static_cast<unsigned>(layout.rows);
  const unsigned stride = static_cast<unsigned>(team.stride()), sub = team.sub();
  const auto fetch = [&](unsigned base, int stage) {
    slice.hold();
    const int64_t row = int64_t{base} + sub;
    const bool active = row < rows, last = active && ends_tensor(layout, row);
    const RowStream<T> x{p.x + (row * p.x_stride + head), 0};
    const RowStream<S> dy{p.dy + (row * p.dy_stride + head), 1};
    if (p.dresidual == nullptr) {
      ring.fetch(stage, active, last, slice, x, dy);
    } else {
      constexpr int kPlace = 1 + sizeof(S) / sizeof(T);
      ring.fetch(stage, active, last, slice, x, dy,
                 RowStream<T>{p.dresidual + (row * p.dresidual_stride + head), kPlace});
    }
  };
  unsigned base = static_cast<unsigned>(team.first());
  ring.template clear<T>(kRowStages, 0, slice);
  ring.template clear<S>(kRowStages, 1, slice);
#pragma unroll 1
  for (int s = 0; s < kRowStages - 1; ++s) fetch(base + s * stride, s);
  RowMoments<C> next = load_stats<kRms>(p, base + sub, rows);
  EdgeElement<kRms, T, S, C> edge(team, head, layout.n, n);
  if constexpr (kEdges) edge.fetch(p, base, rows);

  NormParameter<W, kVec, kMax> weight(p.weight == nullptr ? nullptr : p.weight + head, slice, 1.0f);
  if (kEdges && edge.here && p.weight != nullptr) edge.weight = to_compute(p.weight[edge.column]);
  ColumnSums<C, kVec, kMax, kRms> sums;
  const C inverse_n = C{1} / static_cast<C>(n);
  int stage = 0;
  for (; base < rows; base += stride) {
    const int64_t row = int64_t{base} + sub;
    const bool active = row < rows;
    const RowMoments<C> stats = next;
    next = load_stats<kRms>(p, row + stride, rows);
    if constexpr (kEdges) {
      edge.take();
      edge.fetch(p, row + stride, rows);
    }
    ring.wait(stage);
    slice.hold();
    weight.hold();
    C value[kRms ? 1 : 2] = {};
    if (active) sum_chunks<kRms, T, S>(ring, stage, slice, weight, stats, value, sums);
    if constexpr (kEdges) edge.add(stats, value);
    // NOTE: without dx too: a row behind the barrier in it, its stage is free.
    team.sum_all(value);
    team.join();
    fetch(base + (kRowStages - 1) * stride, previous_stage(stage));
    if (p.dx != nullptr && active) {
      slice.hold();
      weight.hold();
      const C scale = -inverse_n * stats.rstd, slope = value[0] * scale * stats.rstd;
      const C rest = kRms ? C{0} : value[kRms ? 0 : 1] * scale;
      T* const dx = p.dx + row * n;
      store_chunks<kRms, T, S>(ring, stage, slice, weight, stats, slope, rest,
                               p.dresidual != nullptr, ring, stage, 1 + sizeof(S) / sizeof(T),
                               dx + head);
      if constexpr (kEdges) edge.store(stats, slope, rest, dx);
    }
    stage = next_stage(stage);
  }
  ring.drain();
  if (p.partial == nullptr) return;
  C* const dweight = p.partial + blockIdx.x * p.partial_pitch;
  C* const dbias = dweight + p.partials * p.partial_pitch;
  // NOTE: behind the barriers, whose memory nothing else may touch.
  C* const scratch =
      reinterpret_cast<C*>(ring_memory + row_barrier_bytes(static_cast<int>(blockDim.x) / 32) / 16);
  if constexpr (kEdges) {
    store_loose_sums(sums.weight, slice, true, 0, layout.n, scratch, dweight + head);
    if constexpr (!kRms) {
      store_loose_sums(sums.bias, slice, true, 0, layout.n, scratch, dbias + head);
    }
    edge.store_sums(dweight, dbias);
  } else if constexpr (Step::kBlocks) {
    store_sums(sums.weight, slice, dweight);
    if constexpr (!kRms) store_sums(sums.bias, slice, dbias);
  } else {
    gather_sums(sums, slice, team.size(), n, scratch, dweight, dbias);
  }
}

}  // namespace fusedops
