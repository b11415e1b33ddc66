// layer_norm and rms_norm over contiguous rows, with an optional residual that is added first. One
// read and one write of memory; weight and bias stay in registers while a team walks over rows.
//
// The variance is formed from differences to an element of the row, never from plain squares, by
// each warp around its own mean; the warps of a row are joined as Chan, Golub and LeVeque do.
#pragma once

#include "csrc/cuda/rows/team/row_slice.cuh"
#include "csrc/cuda/rows/team/row_stream.cuh"

namespace fusedops {

// The values of kRms: which norm it is.
inline constexpr bool kLayerNorm = false, kRmsNorm = true;

template <class T, class W>
struct NormForward {
  using C = Compute<T>;
  const T* x;         // [rows, n], rows x_stride apart
  const T* residual;  // like x, or null
  const W* weight;    // [n] or null
  const W* bias;      // [n] or null
  void* y;            // [rows, n] of T, or of float where wide
  T* sum;             // [rows, n]: x + residual, or null
  C* mean;            // [rows] or null
  C* rstd;            // [rows] or null
  int64_t x_stride, residual_stride;
  C eps;
  bool wide;
};

// The most chunks of a row that a thread holds: one more for rows that begin inside a chunk.
// NOTE: fp32 parameters beside a half x take twice the registers.
template <bool kRms, class T, class W, bool kRagged>
inline constexpr int kNormChunks =
    (kRms ? 8 : 4) / (sizeof(W) > sizeof(T) ? 2 : 1) + (kRagged ? 1 : 0);

template <class C>
struct RowMoments {
  C mean, rstd;
  __device__ __forceinline__ C normal(C x) const { return (x - mean) * rstd; }
};

__device__ __forceinline__ float reciprocal_root(float x) { return rsqrtf(x); }
__device__ __forceinline__ double reciprocal_root(double x) { return rsqrt(x); }

// A weight of this thread's columns, or `missing`.
template <class W, int kVec, int kCount>
struct NormParameter {
  using Element = W;
  Packed<W, kVec> value[kCount > 0 ? kCount : 1];

  template <int kMax, bool kRagged>
  __device__ __forceinline__ NormParameter(const W* from,
                                           const RowSlice<kVec, kMax, kRagged>& slice,
                                           float missing) {
    const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const W* chunk = from + slice.column(i);
      if (!kRagged && from != nullptr && aligned && slice.full(i)) {
        value[i] = load_packed<W, kVec>(chunk);
        continue;
      }
      Compute<W> loaded[kVec];
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        const bool inside = from != nullptr && slice.some(i) && e >= slice.lo(i) && e < slice.hi(i);
        loaded[e] = inside ? to_compute(chunk[e]) : missing;
      }
      value[i] = pack<W>(loaded);
    }
  }
  template <class C>
  __device__ __forceinline__ C at(int i, int e) const {
    return static_cast<C>(value[i].at(e));
  }
  __device__ __forceinline__ void hold() { fusedops::hold(value); }
};

// Belongs to a forward row: what is left of x beyond the pivot has the mean `rest`.
//
// The pivot is the row's first element. Sums of differences to it do not cancel as sums of values
// do, whatever the mean; and elements that do not belong to the row are set to it: they add 0.
template <class T, class C>
struct PivotMoments {
  C pivot, rest, mean, rstd;
  __device__ __forceinline__ PivotMoments(C pivot, C rest, C variance, C eps)
      : pivot(pivot), rest(rest), mean(pivot + rest), rstd(reciprocal_root(variance + eps)) {}
  __device__ __forceinline__ C normal(C x) const {
    return sizeof(T) == 2 ? (x - mean) * rstd : (x - pivot - rest) * rstd;
  }
};

// What stays the same for all rows: elements in this warp, and not of the row.
template <class C>
struct WarpCounts {
  C inside, inverse, outside;
  template <int kVec, int kMax, bool kRagged>
  __device__ __forceinline__ WarpCounts(const RowTeam<C>& team,
                                        const RowSlice<kVec, kMax, kRagged>& slice)
      : outside(team.warp_sum(static_cast<C>(slice.outside()))) {
    inside = team.warp_sum(static_cast<C>(slice.count() * kVec)) - outside;
    inverse = inside > 0 ? 1 / inside : C{0};
  }
};

// Mean beyond the pivot and squared differences to the mean, of the warp's part of a row. fp32 and
// fp64 look twice at their elements, so that an outlier as pivot costs nothing.
template <class T, int kVec, int kMax, class C>
__device__ __forceinline__ void warp_moments(const RowTeam<C>& team,
                                             const Packed<T, kVec> (&x)[kMax], int count, C pivot,
                                             const WarpCounts<C>& counts, C& mean, C& squares) {
  C sum[kSums<kVec>] = {}, square[kSums<kVec>] = {};
#pragma unroll
  for (int i = 0; i < kMax; ++i) {
    if (i >= count) break;
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      const C d = x[i].at(e) - pivot;
      sum[e % kSums<kVec>] += d;
      square[e % kSums<kVec>] += d * d;
    }
  }
  C total = team.warp_sum(sum_of(sum));
  mean = total * counts.inverse;
  if constexpr (sizeof(T) == 2) {
    squares = team.warp_sum(sum_of(square)) - total * mean;
  } else {
    C left[kSums<kVec>] = {}, far[kSums<kVec>] = {};
#pragma unroll
    for (int i = 0; i < kMax; ++i) {
      if (i >= count) break;
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        const C d = x[i].at(e) - pivot - mean;
        left[e % kSums<kVec>] += d;
        far[e % kSums<kVec>] += d * d;
      }
    }
    total = team.warp_sum(sum_of(left)) + counts.outside * mean;
    squares = team.warp_sum(sum_of(far)) - counts.outside * mean * mean;
    squares -= total * total * counts.inverse;
    mean += total * counts.inverse;
  }
  squares = squares < 0 ? C{0} : squares;  // NOTE: NaN stays
}

// The moments of the row whose chunks are x.
template <bool kRms, class T, int kVec, int kMax, class C>
__device__ __forceinline__ PivotMoments<T, C> row_moments(RowTeam<C>& team,
                                                          const Packed<T, kVec> (&x)[kMax],
                                                          int count, C pivot,
                                                          const WarpCounts<C>& counts, C inverse_n,
                                                          C eps) {
  if constexpr (kRms) {
    C square[kSums<kVec>] = {};
#pragma unroll
    for (int i = 0; i < kMax; ++i) {
      if (i >= count) break;
#pragma unroll
      for (int e = 0; e < kVec; ++e) square[e % kSums<kVec>] += x[i].at(e) * x[i].at(e);
    }
    return {0, 0, team.sum(sum_of(square)) * inverse_n, eps};
  } else {
    C mean, squares;
    warp_moments(team, x, count, pivot, counts, mean, squares);
    if (team.in_warp()) return {pivot, mean, squares * inverse_n, eps};
    team.publish(squares, mean, counts.inside);
    mean = team.sum_slots([](const RowSlot<C>& s) { return s.b * s.c; }) * inverse_n;
    squares = team.sum_slots([&](const RowSlot<C>& s) {
      const C d = s.b - mean;
      return s.a + s.c * d * d;
    });
    return {pivot, mean, squares * inverse_n, eps};
  }
}

// x of this stage, or x + residual, which is stored as well.
template <int kVec, int kMax, bool kRagged, class T, class W, class Ring>
__device__ __forceinline__ void read_norm_input(const NormForward<T, W>& p, const Ring& ring,
                                                const RowSlice<kVec, kMax, kRagged>& slice,
                                                int stage, T* sum_row, Packed<T, kVec> (&x)[kMax]) {
#pragma unroll
  for (int i = 0; i < kMax; ++i) {
    if (i >= slice.count()) break;
    x[i] = ring.template read<T, kVec>(stage, 0, i);
  }
  if (p.residual == nullptr) return;
#pragma unroll
  for (int i = 0; i < kMax; ++i) {
    if (i >= slice.count()) break;
    const auto residual = ring.template read<T, kVec>(stage, 1, i);
    Compute<T> sum[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) sum[e] = x[i].at(e) + residual.at(e);
    x[i] = pack<T>(sum);
    if (sum_row != nullptr) slice.store(i, sum_row, sum);
  }
}

template <bool kRms, class T, class W>
__device__ __forceinline__ T norm_pivot(const NormForward<T, W>& p, int64_t row, int64_t rows) {
  Compute<T> pivot = 0;
  if (!kRms && row < rows) {
    pivot = to_compute(p.x[row * p.x_stride]);
    if (p.residual != nullptr) pivot += to_compute(p.residual[row * p.residual_stride]);
  }
  return from_compute<T>(pivot);
}

template <bool kRms, class T, class W, bool kRagged>
__global__ void __launch_bounds__(kRowThreads) norm_kernel(NormForward<T, W> p, RowLayout layout) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>, kMax = kNormChunks<kRms, T, W, kRagged>;
  extern __shared__ uint4 shared[];
  wait_for_predecessor();
  RowTeam<C> team(layout, shared);
  RowSlice<kVec, kMax, kRagged> slice(team, layout);
  const int streams = p.residual == nullptr ? 1 : 2;
  RowRing<kRowStages> ring(shared + row_slot_bytes<C>(layout.cluster, blockDim.x) / 16, team,
                           layout, streams);

  const auto fetch = [&](int64_t base, int stage) {
    const int64_t row = base + team.sub();
    const bool active = row < layout.rows, last = ends_tensor(layout, row);
    const RowStream<T> x{p.x + row * p.x_stride, 0};
    slice.hold();
    if (streams == 1) {
      ring.fetch(stage, active, last, slice, x);
    } else {
      ring.fetch(stage, active, last, slice, x,
                 RowStream<T>{p.residual + row * p.residual_stride, 1});
    }
  };
#pragma unroll
  for (int s = 0; s < kRowStages; ++s) fetch(team.first() + s * team.stride(), s);

  T next_pivot = norm_pivot<kRms>(p, team.first() + team.sub(), layout.rows);
  NormParameter<W, kVec, kMax> weight(p.weight, slice, 1.0f);
  NormParameter<W, kVec, kRms ? 0 : kMax> bias(p.bias, slice, 0.0f);
  const C inverse_n = C{1} / static_cast<C>(layout.n);
  const WarpCounts<C> counts(team, slice);
  int stage = 0;
  for (int64_t base = team.first(); base < layout.rows; base += team.stride()) {
    const int64_t row = base + team.sub();
    const bool active = row < layout.rows;
    const T pivot = next_pivot;
    next_pivot = norm_pivot<kRms>(p, row + team.stride(), layout.rows);
    ring.wait(stage);
    slice.hold();
    ring.fill(stage, 0, pivot, slice);
    if (streams == 2) ring.fill(stage, 1, from_compute<T>(C{0}), slice);
    Packed<T, kVec> x[kMax];
    read_norm_input(p, ring, slice, stage, active ? p.sum + row * layout.n : nullptr, x);
    const PivotMoments<T, C> moments =
        row_moments<kRms>(team, x, slice.count(), to_compute(pivot), counts, inverse_n, p.eps);
    team.join();
    fetch(base + kRowStages * team.stride(), stage);
    if (team.leader() && active) {
      if (p.mean != nullptr) p.mean[row] = moments.mean;
      if (p.rstd != nullptr) p.rstd[row] = moments.rstd;
    }
    hold(x);
    slice.hold();
    hold(weight.value);
    if constexpr (!kRms) hold(bias.value);
    if (active) {
#pragma unroll
      for (int i = 0; i < kMax; ++i) {
        if (i >= slice.count()) break;
        C y[kVec];
#pragma unroll
        for (int e = 0; e < kVec; ++e) {
          const C xhat = kRms ? x[i].at(e) * moments.rstd : moments.normal(x[i].at(e));
          y[e] = xhat * weight.template at<C>(i, e);
          if constexpr (!kRms) y[e] += bias.template at<C>(i, e);
        }
        slice.store_as(i, static_cast<T*>(p.y), p.wide, row * layout.n, y);
      }
    }
    stage = next_stage(stage);
  }
  ring.drain();
  team.leave();
}

// ---- rows that no team can hold: a block per row, which reads its row twice ----

// Count, mean and sum of squared differences to it, joined pair by pair.
template <class C>
struct RunningMoments {
  C count = 0, mean = 0, squares = 0;
  __device__ __forceinline__ void join(C other_count, C other_mean, C other_squares) {
    if (other_count == 0) return;
    const C all = count + other_count, part = other_count / all, delta = other_mean - mean;
    squares += other_squares + delta * (count * part) * delta;
    mean += delta * part;
    count = all;
  }
};

template <bool kRms, class T, class W>
__global__ void __launch_bounds__(kStreamThreads, kStreamBlocks)
    norm_long_kernel(NormForward<T, W> p, int64_t rows, int64_t n) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>;
  __shared__ RowSlot<C> slots[2 * kStreamThreads / 32];
  wait_for_predecessor();
  RowTeam<C> team(RowLayout{rows, 0, 32, 1, 0}, slots);
  for (int64_t row = team.first(); row < rows; row += team.stride()) {
    const T* x = p.x + row * p.x_stride;
    const T* residual = p.residual + row * p.residual_stride;
    T* sum = p.sum + row * n;
    const int shift = static_cast<int>(row * n % kVec);
    RunningMoments<C> seen;
    stream_row<T, kVec>(x, n, shift, team.index(), team.size(), [&](auto& chunk) {
      C v[kVec];
#pragma unroll
      for (int e = 0; e < kVec; ++e) v[e] = chunk.vec.at(e);
      if (p.residual != nullptr) {
        const auto other = load_like(residual, chunk);
#pragma unroll
        for (int e = 0; e < kVec; ++e) v[e] += other.at(e);
        store_like(sum, chunk, v);
        chunk.vec = pack<T>(v);
      }
      C mean = 0, squares = 0;
      const C count = chunk.hi - chunk.lo;
      if constexpr (!kRms) {
        chunk.each([&](int e) { mean += chunk.vec.at(e); });
        mean /= count;
      }
      chunk.each([&](int e) {
        const C d = chunk.vec.at(e) - mean;
        squares += d * d;
      });
      seen.join(count, mean, squares);
    });
    const C n_warp = team.warp_sum(seen.count);
    const C mean_warp = n_warp > 0 ? team.warp_sum(seen.mean * seen.count) / n_warp : C{0};
    const C d = seen.mean - mean_warp;
    team.publish(team.warp_sum(seen.squares + d * seen.count * d), mean_warp, n_warp);
    const C count = static_cast<C>(n);
    const C mean =
        kRms ? C{0} : team.sum_slots([](const RowSlot<C>& s) { return s.b * s.c; }) / count;
    const C squares = team.sum_slots([&](const RowSlot<C>& s) {
      const C d = s.b - mean;
      return kRms ? s.a : s.a + s.c * d * d;
    });
    const RowMoments<C> moments{mean, reciprocal_root(squares / count + p.eps)};
    if (team.leader()) {
      if (p.mean != nullptr) p.mean[row] = moments.mean;
      if (p.rstd != nullptr) p.rstd[row] = moments.rstd;
    }
    const T* from = p.residual != nullptr ? sum : x;
    stream_row<T, kVec>(from, n, shift, team.index(), team.size(), [&](const auto& chunk) {
      C y[kVec] = {};
      chunk.each([&](int e) {
        const int64_t column = chunk.column + e;
        const C w = p.weight == nullptr ? C{1} : static_cast<C>(to_compute(p.weight[column]));
        const C b = p.bias == nullptr ? C{0} : static_cast<C>(to_compute(p.bias[column]));
        y[e] = (chunk.vec.at(e) - moments.mean) * moments.rstd * w + b;
      });
      if (sizeof(T) == 2 && p.wide) {
        store_like(static_cast<float*>(p.y) + row * n, chunk, y);
      } else {
        store_like(static_cast<T*>(p.y) + row * n, chunk, y);
      }
    });
  }
}

}  // namespace fusedops
