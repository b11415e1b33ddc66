// Gradients of layer_norm and rms_norm of rows that no team can hold. One kernel forms the sums
// that a row's dx needs, several blocks a row; the next one writes dx and adds up dweight and dbias
// while it is at it: a thread has a few columns of up to kLongRows rows. Together they read x and
// dy twice, where dx and column sums apart read them three times. No atomics: every sum has its
// order.
#pragma once

#include "csrc/common/device/division.cuh"
#include "csrc/cuda/rows/norm/norm_backward_split.cuh"

namespace fusedops {

inline constexpr int kLongSumThreads = 512, kLongThreads = 256;
inline constexpr int kLongRows = 64;   // of a block, which keeps chains of fp32 sums short
inline constexpr int kLeastRows = 16;  // fewer would make partial rows cost as much as dx
inline constexpr int kLongParts = 32;  // of a row, at most

struct LongLayout {
  int64_t rows, n;
  int parts;         // of a row, a block each; adds as they come
  int64_t strips;    // blocks of columns
  int rows_of_part;  // of a block of columns
};

// A block: the sums of g * xhat and of g over a part of a row.
template <bool kRms, class T, class W, class S>
__global__ void __launch_bounds__(kLongSumThreads, 2)
    norm_backward_long_sum_kernel(NormBackward<T, W, S> p, LongLayout layout, Compute<T>* sums) {
  using C = Compute<T>;
  __shared__ alignas(16) uint8_t slots[row_slot_bytes<C>(1, kLongSumThreads)];
  wait_for_predecessor();
  const int64_t row = divide(blockIdx.x, layout.parts);
  const int part = static_cast<int>(blockIdx.x - row * layout.parts);
  RowTeam<C> team(RowLayout{layout.rows, 0, 32, 1, 0}, slots);
  C sum[2] = {};
  add_row_sums<kRms>(p, load_stats<kRms>(p, row, layout.rows), row, layout.n,
                     part * kLongSumThreads + static_cast<int>(threadIdx.x),
                     layout.parts * kLongSumThreads, sum);
  team.sum_all(sum);
  if (threadIdx.x >= 2) return;
  sums[2 * (row * layout.parts + part) + threadIdx.x] = threadIdx.x == 0 ? sum[0] : sum[1];
}

// What dx of a row needs.
template <class C>
struct RowTerms {
  RowMoments<C> stats;
  C slope, rest;  // as norm_dx takes them
};

template <bool kRms, class T, class W, class S, class C = Compute<T>>
__device__ __forceinline__ RowTerms<C> load_terms(const NormBackward<T, W, S>& p,
                                                  const LongLayout& layout, const C* sums,
                                                  int64_t row) {
  RowTerms<C> terms{load_stats<kRms>(p, row, layout.rows), 0, 0};
  const C* from = sums + 2 * row * layout.parts;
  C gx = 0, g = 0;
#pragma unroll 4
  for (int part = 0; part < layout.parts; ++part) {
    gx += from[2 * part];
    g += from[2 * part + 1];
  }
  const C rstd = terms.stats.rstd, per = static_cast<C>(1) / static_cast<C>(layout.n);
  terms.slope = -gx * per * rstd * rstd;
  terms.rest = kRms ? C{0} : -g * per * rstd;
  return terms;
}

// The columns of a thread: a chunk, or where rows begin anywhere every kLongThreads-th element of
// the block's.
template <bool kRagged, int kVec>
struct LongColumns {
  int64_t first, n;
  __device__ __forceinline__ LongColumns(int64_t strip, int64_t n)
      : first(strip * kLongThreads * kVec + static_cast<int>(threadIdx.x) * (kRagged ? 1 : kVec)),
        n(n) {}
  __device__ __forceinline__ int64_t at(int e) const {
    return first + e * (kRagged ? kLongThreads : 1);
  }
  __device__ __forceinline__ bool has(int e) const { return at(e) < n; }
};

// Elements of one row.
template <bool kRagged, class V, int kVec>
struct LongElements {
  std::conditional_t<kRagged, V[kVec], Packed<V, kVec>> held;

  __device__ __forceinline__ void load(const V* row, const LongColumns<kRagged, kVec>& columns) {
    if constexpr (kRagged) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        if (columns.has(e)) held[e] = row[columns.at(e)];
      }
    } else {
      if (columns.has(0)) held = load_packed<V, kVec>(row + columns.first);
    }
  }
  __device__ __forceinline__ Compute<V> at(int e) const {
    if constexpr (kRagged) {
      return to_compute(held[e]);
    } else {
      return held.at(e);
    }
  }
};

template <bool kRagged, class T, int kVec, class C>
__device__ __forceinline__ void store_long(T* row, const LongColumns<kRagged, kVec>& columns,
                                           const C (&value)[kVec]) {
  if constexpr (kRagged) {
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      if (columns.has(e)) row[columns.at(e)] = from_compute<T>(value[e]);
    }
  } else {
    if (columns.has(0)) store_packed(row + columns.first, pack<T>(value));
  }
}

// A block: dx of some columns of some rows, and their sums over those rows.
template <bool kRms, bool kRagged, class T, class W, class S>
__global__ void __launch_bounds__(kLongThreads, 2)
    norm_backward_long_kernel(NormBackward<T, W, S> p, NormSums out, LongLayout layout,
                              const Compute<T>* sums) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>, kAhead = kRagged ? 2 : 4;
  __shared__ RowTerms<C> terms[kLongRows];
  wait_for_predecessor();
  const int64_t block = divide(blockIdx.x, layout.strips);
  const LongColumns<kRagged, kVec> columns(blockIdx.x - block * layout.strips, layout.n);
  // NOTE: the last rows first, which the kernel before has left in the cache.
  const int64_t part = p.partials - 1 - block, begin = part * layout.rows_of_part;
  const int64_t left = layout.rows - begin;
  const int count = left < layout.rows_of_part ? static_cast<int>(left) : layout.rows_of_part;
  if (threadIdx.x < count) {
    terms[threadIdx.x] = load_terms<kRms>(p, layout, sums, begin + threadIdx.x);
  }
  C weight[kVec], dweight[kVec] = {}, dbias[kVec] = {};
#pragma unroll
  for (int e = 0; e < kVec; ++e) {
    const bool here = p.weight != nullptr && columns.has(e);
    weight[e] = here ? static_cast<C>(to_compute(p.weight[columns.at(e)])) : C{1};
  }
  __syncthreads();

  for (int first = 0; first < count; first += kAhead) {
    LongElements<kRagged, T, kVec> x[kAhead], more[kAhead];
    LongElements<kRagged, S, kVec> dy[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t row = begin + first + i;
      if (first + i >= count) break;
      x[i].load(p.x + row * p.x_stride, columns);
      dy[i].load(p.dy + row * p.dy_stride, columns);
      if (p.dresidual != nullptr) more[i].load(p.dresidual + row * p.dresidual_stride, columns);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= count) break;
      const RowTerms<C> row = terms[first + i];
      C dx[kVec];
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        const C d = static_cast<C>(dy[i].at(e)), value = x[i].at(e);
        dweight[e] += d * row.stats.normal(value);
        if constexpr (!kRms) dbias[e] += d;
        dx[e] = norm_dx<kRms, T>(value, d * weight[e], row.stats, row.slope, row.rest);
        if (p.dresidual != nullptr) dx[e] += more[i].at(e);
      }
      store_long<kRagged>(p.dx + (begin + first + i) * layout.n, columns, dx);
    }
  }

#pragma unroll
  for (int which = 0; which < (kRms ? 1 : 2); ++which) {
    void* const result = which == 0 ? out.dweight : out.dbias;
    C* const partial = p.partial == nullptr
                           ? nullptr
                           : p.partial + (int64_t{which} * p.partials + part) * p.partial_pitch;
    if (result == nullptr) continue;
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      if (!columns.has(e)) continue;
      const C sum = which == 0 ? dweight[e] : dbias[e];
      if (p.partials > 1) {
        partial[columns.at(e)] = sum;
      } else {
        store_parameter<T>(result, out.wide, columns.at(e), sum);
      }
    }
  }
}

}  // namespace fusedops
