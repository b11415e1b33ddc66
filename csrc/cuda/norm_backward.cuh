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

// How a thread works through a step: kRows rows, up to kChunks chunks of each. Column sums take
// registers per chunk, what rows have to agree on takes time per step.
// NOTE: local memory would wait for what global loads are under way: nothing may be spilled.
template <int kChunkCount, int kRowCount, bool kBlockTeams, int kRegisterCount>
struct NormStep {
  static constexpr int kChunks = kChunkCount, kRows = kRowCount, kRegisters = kRegisterCount;
  static constexpr bool kBlocks = kBlockTeams;  // a team is a block or a cluster: fewer registers
};
using WarpStep = NormStep<2, 1, false, 112>;
using LongWarpStep = NormStep<5, 1, false, 128>;
using BlockStep = NormStep<2, 1, true, 112>;
using TallStep = NormStep<4, 1, true, 128>;

// Values that a row's threads agree on in a step.
template <bool kRms, class Step>
inline constexpr int kStepValues = (kRms ? 1 : 2) * Step::kRows;

// What RowTeam makes place for.
template <bool kRms, class Step>
inline constexpr int kStepSlots =
    kStepValues<kRms, Step> > kSlotValues ? kStepValues<kRms, Step> : kSlotValues;

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

// A team per block or cluster: its columns straight into the partial row.
template <class C, int kVec, int kCount, bool kRagged>
__device__ __forceinline__ void store_sums(const C (&sums)[kCount][kVec],
                                           const RowSlice<kVec, kCount, kRagged>& slice, C* row) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    C* const chunk = row + slice.column(i);
    if constexpr (!kRagged) {
      if (slice.full(i)) store_packed(chunk, pack<C>(sums[i]));
    } else {
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        if (slice.some(i) && e >= slice.lo(i) && e < slice.hi(i)) chunk[e] = sums[i][e];
      }
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

// Sums of a step: g * xhat of its rows, then g of its rows; and the column sums.
template <bool kRms, class Step, bool kRagged, class T, class S, class W, int kVec, class Ring,
          class C>
__device__ __forceinline__ void sum_step(const Ring& ring, int stage, int words,
                                         const RowSlice<kVec, Step::kChunks, kRagged>& slice,
                                         const NormParameter<W, kVec, Step::kChunks>& weight,
                                         const RowMoments<C> (&stats)[Step::kRows], unsigned active,
                                         C (&value)[kStepValues<kRms, Step>],
                                         ColumnSums<C, kVec, Step::kChunks, kRms>& sums) {
#pragma unroll
  for (int i = 0; i < Step::kChunks; ++i) {
    if (i > 0 && i >= slice.count()) break;
#pragma unroll
    for (int r = 0; r < Step::kRows; ++r) {
      if (!(active >> r & 1) || !slice.some(i)) break;
      auto x = ring.template read<T, kVec>(stage, r * words, i);
      auto dy = ring.template read<S, kVec>(stage, r * words + 1, i);
      if (kRagged && !slice.full(i)) {  // adds nothing to any sum
        x.keep(slice.lo(i), slice.hi(i));
        dy.keep(slice.lo(i), slice.hi(i));
      }
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        const C d = dy.at(e);
        const C xhat = kRms ? x.at(e) * stats[r].rstd : stats[r].normal(x.at(e));
        const C g = d * weight.template at<C>(i, e);
        value[r] += g * xhat;
        sums.weight[i][e] += d * xhat;
        if constexpr (!kRms) {
          value[Step::kRows + r] += g;
          sums.bias[i][e] += d;
        }
      }
    }
  }
}

// dx of a step; value: -mean(g * xhat) * rstd and -mean(g) * rstd of its rows.
template <bool kRms, class Step, bool kRagged, class T, class S, class W, int kVec, class Ring,
          class P, class C>
__device__ __forceinline__ void store_step(const P& p, const Ring& ring, int stage, int words,
                                           const RowSlice<kVec, Step::kChunks, kRagged>& slice,
                                           const NormParameter<W, kVec, Step::kChunks>& weight,
                                           const RowMoments<C> (&stats)[Step::kRows],
                                           unsigned active,
                                           const C (&value)[kStepValues<kRms, Step>], T* dx_row,
                                           int64_t stride) {
#pragma unroll
  for (int i = 0; i < Step::kChunks; ++i) {
    if (i > 0 && i >= slice.count()) break;
#pragma unroll
    for (int r = 0; r < Step::kRows; ++r) {
      if (!(active >> r & 1) || !slice.some(i)) break;
      const auto x = ring.template read<T, kVec>(stage, r * words, i);
      const auto dy = ring.template read<S, kVec>(stage, r * words + 1, i);
      const C rstd = stats[r].rstd, slope = value[r] * rstd;
      const C rest = value[kStepValues<kRms, Step> - Step::kRows + r];  // unless kRms
      const C at_zero = fma(-stats[r].mean, slope, rest);
      C dx[kVec];
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        const C g = dy.at(e) * weight.template at<C>(i, e);
        C low = x.at(e) * slope;
        if constexpr (!kRms) {
          // NOTE: exact enough for halves, and one instruction less.
          low = sizeof(T) == 2 ? fma(x.at(e), slope, at_zero)
                               : fma(x.at(e) - stats[r].mean, slope, rest);
        }
        dx[e] = fma(g, rstd, low);
      }
      if (p.dresidual != nullptr) {
        constexpr int kPlace = 1 + sizeof(S) / sizeof(T);
        const auto more = ring.template read<T, kVec>(stage, r * words + kPlace, i);
#pragma unroll
        for (int e = 0; e < kVec; ++e) dx[e] += more.at(e);
      }
      slice.store(i, dx_row + r * stride, dx);
    }
  }
}

template <bool kRms, class T, class W, class S, bool kRagged, class Step>
__global__ void __maxnreg__(Step::kRegisters)
    norm_backward_kernel(NormBackward<T, W, S> p, RowLayout layout) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>, kRows = Step::kRows, kSlots = kStepSlots<kRms, Step>;
  extern __shared__ uint4 shared[];
  wait_for_predecessor();
  if constexpr (Step::kBlocks) {
    layout.lanes = 32;
    __builtin_assume(layout.cluster > 0);
  }
  RowTeam<C> team(layout, shared, kSlots);
  RowSlice<kVec, Step::kChunks, kRagged> slice(team, layout);
  const int words = norm_backward_words<T, S>(p.dresidual != nullptr);
  uint4* const ring_memory = shared + row_slot_bytes<C>(layout.cluster, blockDim.x, kSlots) / 16;
  RowRing<kRowStages - 1, kRows> ring(ring_memory, team, layout, kRows * words);

  // NOTE: 32 bits, since registers are short; the host sends no more rows than they count.
  const unsigned rows = static_cast<unsigned>(layout.rows);
  const unsigned stride = static_cast<unsigned>(team.stride()), sub = team.sub();
  const auto fetch = [&](unsigned base, int stage) {
    slice.hold();
#pragma unroll 1
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = base + r * stride + sub;
      const bool active = row < rows, last = row == rows - 1;
      const RowStream<T> x{p.x + row * p.x_stride, r * words};
      const RowStream<S> dy{p.dy + row * p.dy_stride, r * words + 1};
      if (p.dresidual == nullptr) {
        ring.fetch(stage, active, last, slice, x, dy);
      } else {
        constexpr int kPlace = 1 + sizeof(S) / sizeof(T);
        ring.fetch(stage, active, last, slice, x, dy,
                   RowStream<T>{p.dresidual + row * p.dresidual_stride, r * words + kPlace});
      }
    }
  };
  RowMoments<C> next[kRows];
  const auto look_up = [&](unsigned base) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) next[r] = load_stats<kRms>(p, base + r * stride + sub, rows);
  };
  unsigned base = static_cast<unsigned>(team.first());
#pragma unroll 1
  for (int s = 0; s < kRowStages - 1; ++s) fetch(base + s * kRows * stride, s);
  look_up(base);

  NormParameter<W, kVec, Step::kChunks> weight(p.weight, slice, 1.0f);
  ColumnSums<C, kVec, Step::kChunks, kRms> sums;
  const C inverse_n = C{1} / static_cast<C>(layout.n);
  int stage = 0;
  for (; base < rows; base += kRows * stride) {
    unsigned active = 0;
    RowMoments<C> stats[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      active |= static_cast<unsigned>(base + r * stride + sub < rows) << r;
      stats[r] = next[r];
    }
    look_up(base + kRows * stride);
    ring.wait(stage);
    slice.hold();
    hold(weight.value);
    C value[kStepValues<kRms, Step>] = {};
    sum_step<kRms, Step, kRagged, T, S>(ring, stage, words, slice, weight, stats, active, value,
                                        sums);
    // NOTE: without dx too: a step behind the barrier in it, its stage is free.
    team.sum_all(value);
    team.join();
    fetch(base + (kRowStages - 1) * kRows * stride, previous_stage(stage));
    if (p.dx != nullptr) {
      slice.hold();
      hold(weight.value);
#pragma unroll
      for (int v = 0; v < kStepValues<kRms, Step>; ++v) {
        value[v] *= -inverse_n * stats[v % kRows].rstd;
      }
      store_step<kRms, Step, kRagged, T, S>(p, ring, stage, words, slice, weight, stats, active,
                                            value, p.dx + int64_t{base + sub} * layout.n,
                                            int64_t{stride} * layout.n);
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
      store_sums(sums.weight, slice, dweight);
      if constexpr (!kRms) store_sums(sums.bias, slice, dbias);
    }
  }
  team.leave();
}

}  // namespace fusedops
