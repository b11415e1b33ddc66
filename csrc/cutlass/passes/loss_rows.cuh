// The loss of rows of logits that nobody else will read, and their gradient in the same place: what
// linear_cross_entropy does between its products.
//
//   y = softcap tanh(x / softcap), or x
//   loss = (1 - s) (lse - y[target]) + s (lse - mean(y)) + z lse^2,  lse = log(sum(exp(y)))
//   dx = (exp(y - lse) (1 + 2 z lse) - (1 - s) [column = target] - s / n) (1 - (y / softcap)^2)
//
// A block has a row. It reads it twice; few rows are in work at a time, so that the second read,
// which begins where the first ended, finds most of it in L2.
#pragma once

#include "csrc/common/device/logit_rows.cuh"
#include "csrc/common/device/pdl.cuh"

namespace fusedops {

template <class T>
struct LossRows {
  using C = Compute<T>;
  T* x;                   // [rows, pitch]
  const int64_t* target;  // [rows]
  LossSum* sums;          // [rows]
  C* losses;              // [rows] or null
  const C* factor;        // [rows] or one; null: no gradient
  bool factor_per_row;
  int64_t ignore_index;
  int n, pitch;
  C smoothing, softcap, z_loss;
  // The first class of this shard, and how many there are in all shards.
  int64_t first, classes;
  LogitPart<C>* parts;  // [rows]
  const C* lse;         // [rows]
};

template <class C, bool kCap>
struct CappedLogit {
  C cap;
  __device__ __forceinline__ C operator()(C x) const {
    if constexpr (kCap) return cap * tanh_of(x / cap);
    return x;
  }
  // The derivative, from what operator() gave.
  __device__ __forceinline__ C slope(C y) const {
    if constexpr (kCap) return 1 - (y / cap) * (y / cap);
    return 1;
  }

 private:
  __device__ __forceinline__ static float tanh_of(float x) { return tanhf(x); }
  __device__ __forceinline__ static double tanh_of(double x) { return tanh(x); }
};

// What a thread knows of a row: the largest value, the sum of exponentials relative to it, and the
// sum of values where `smooth`.
template <class T, bool kCap>
struct LossRowSums {
  using C = Compute<T>;
  static constexpr int kVec = kChunkOf<T>;
  C top = -static_cast<C>(INFINITY), sum[kSums<kVec>] = {}, values = 0;

  // Adds the first `count` chunks.
  template <int kCount>
  __device__ __forceinline__ void add(Packed<T, kVec> (&x)[kCount], int count,
                                      const CappedLogit<C, kCap>& logit, bool smooth) {
    const LogitExp<T> exp = raise(logit(largest(x, count)));
    hold(x);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i >= count) break;
#pragma unroll
      for (int e = 0; e < kVec; ++e) sum[e % kSums<kVec>] += exp.of(logit(x[i].at(e)));
    }
    if (!smooth) return;
    hold(x);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i >= count) break;
#pragma unroll
      for (int e = 0; e < kVec; ++e) values += logit(x[i].at(e));
    }
  }
  __device__ __forceinline__ void add(C y) {
    sum[0] += raise(y).of(y);
    values += y;
  }
  __device__ __forceinline__ LogitPart<C> part() { return {top, sum_of(sum), values, C{0}}; }

 private:
  // The sums become relative to a top that is y at the least.
  __device__ __forceinline__ LogitExp<T> raise(C y) {
    const C before = top;
    top = larger(top, y);
    const LogitExp<T> exp(finite_top(top));
    const C scale = exp.ratio(before);
#pragma unroll
    for (int i = 0; i < kSums<kVec>; ++i) sum[i] *= scale;
    return exp;
  }
};

// fn(chunks, how many of them there are, index of the first) for this thread's chunks of a row,
// kRowChunks at a time, as many apart as a block has threads; backwards where kBack. load(index): a
// chunk.
template <class T, bool kBack, class Load, class Fn>
__device__ __forceinline__ void each_chunks(int chunks, Load load, Fn fn) {
  const int size = static_cast<int>(blockDim.x), step = kRowChunks * size;
  const int last = (chunks - 1) / step * step;
#pragma unroll 1
  for (int begin = kBack ? last : 0; kBack ? begin >= 0 : begin <= last;
       begin += kBack ? -step : step) {
    const int first = begin + static_cast<int>(threadIdx.x);
    if (first >= chunks) continue;
    const int count = min((chunks - first + size - 1) / size, kRowChunks);
    Packed<T, kChunkOf<T>> x[kRowChunks];
    // NOTE: a thread that has no chunk i loads another one's: branches around loads would have it
    // wait for each apart.
#pragma unroll
    for (int i = 0; i < kRowChunks; ++i) x[i] = load(min(first + i * size, chunks - 1));
    fn(x, count, first);
  }
}

// Joins the parts of one row that the threads of a block have; every thread gets the same bits.
template <class T, class C>
__device__ __forceinline__ LogitPart<C> join_block(LogitPart<C> part, bool smooth) {
  __shared__ LogitPart<C> warps[kLossThreads / 32];
  const LossTeam<false> team(32);
  const int lane = threadIdx.x % 32;
  team.template join<T>(part, smooth);
  if (lane == 0) warps[threadIdx.x / 32] = part;
  __syncthreads();
  part = {-static_cast<C>(INFINITY), 0, 0, 0};
  if (lane < static_cast<int>(blockDim.x) / 32) part = warps[lane];
  team.template join<T>(part, smooth);
  return part;
}

// What the block's row has; every thread gets the same bits.
template <class T, bool kCap>
__device__ __forceinline__ LogitPart<Compute<T>> read_row(
    const LossRows<T>& p, const T* x, const CappedLogit<Compute<T>, kCap>& logit, bool smooth) {
  constexpr int kVec = kChunkOf<T>;
  LossRowSums<T, kCap> mine;
  each_chunks<T, false>(
      p.n / kVec, [&](int i) { return load_passing<T, kVec>(x + int64_t{i} * kVec); },
      [&](auto& held, int count, int) { mine.add(held, count, logit, smooth); });
  const int tail = p.n / kVec * kVec + static_cast<int>(threadIdx.x);
  if (tail < p.n) mine.add(logit(to_compute(x[tail])));
  return join_block<T>(mine.part(), smooth);
}

template <class T>
__device__ __forceinline__ void write_zeros(const LossRows<T>& p, T* x) {
  constexpr int kVec = kChunkOf<T>;
  const auto zero = splat<T, kVec>(from_compute<T>(Compute<T>{0}));
  for (int i = threadIdx.x; i < p.pitch / kVec; i += blockDim.x) {
    store_packed(x + int64_t{i} * kVec, zero);
  }
}

// Writes the gradient of a row in the place of its logits; `target` is a column of the row, or -1.
template <class T, bool kCap>
__device__ __forceinline__ void write_gradient(const LossRows<T>& p, T* x, int target,
                                               Compute<T> lse, Compute<T> factor,
                                               const CappedLogit<Compute<T>, kCap>& logit) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>;
  const int chunks = p.n / kVec;
  const C weight = factor * (1 + 2 * p.z_loss * lse);
  const C other = factor * (-p.smoothing / static_cast<C>(p.classes));
  const C at_target = factor * (p.smoothing - 1);
  const auto gradient = [&](C value, bool chosen) {
    const C y = logit(value), g = exp_from<T>(y, lse) * weight + other;
    return (chosen ? g + at_target : g) * logit.slope(y);
  };
  each_chunks<T, true>(
      chunks, [&](int i) { return load_packed<T, kVec>(x + int64_t{i} * kVec); },
      [&](auto& held, int count, int first) {
        hold(held);
#pragma unroll
        for (int i = 0; i < kRowChunks; ++i) {
          if (i >= count) break;
          const int chunk = first + i * static_cast<int>(blockDim.x);
          const int chosen = target / kVec == chunk ? target % kVec : -1;
          C grad[kVec];
#pragma unroll
          for (int e = 0; e < kVec; ++e) grad[e] = gradient(held[i].at(e), chosen == e);
          store_packed(x + int64_t{chunk} * kVec, pack<T>(grad));
        }
      });
  const int column = chunks * kVec + static_cast<int>(threadIdx.x);
  if (column < p.n) {
    x[column] = from_compute<T>(gradient(to_compute(x[column]), column == target));
  } else if (column < p.pitch) {
    x[column] = from_compute<T>(C{0});
  }
}

template <class T, bool kCap>
__global__ void __launch_bounds__(kLossThreads) loss_rows_kernel(LossRows<T> p) {
  using C = Compute<T>;
  wait_for_predecessor();
  const int64_t row = blockIdx.x, target = p.target[row];
  T* const x = p.x + row * p.pitch;
  if (target == p.ignore_index) {
    if (threadIdx.x == 0) {
      p.sums[row] = {};
      if (p.losses != nullptr) p.losses[row] = 0;
    }
    if (p.factor == nullptr) return;
    write_zeros(p, x);
    return;
  }

  const CappedLogit<C, kCap> logit{p.softcap};
  const bool smooth = p.smoothing != 0, exists = target >= 0 && target < p.n;
  const C chosen = exists ? logit(to_compute(x[target])) : C{NAN};
  LogitPart<C> all = read_row(p, x, logit, smooth);  // nobody writes before all have read
  all.chosen = chosen;
  C lse;
  C loss = row_loss<T>(all, p.smoothing, p.n, lse);
  loss += p.z_loss * lse * lse;
  if (threadIdx.x == 0) {
    p.sums[row] = {static_cast<double>(loss), 1.0};
    if (p.losses != nullptr) p.losses[row] = loss;
  }
  if (p.factor == nullptr) return;
  const C factor = exists ? p.factor[p.factor_per_row ? row : 0] : C{NAN};
  write_gradient<T, kCap>(p, x, exists ? static_cast<int>(target) : 0, lse, factor, logit);
}

// Leaves what a shard's part of each row has, its sum relative to its top. chosen: the target's
// logit, 0 where another shard has it, NaN where none does.
template <class T, bool kCap>
__global__ void __launch_bounds__(kLossThreads) loss_parts_kernel(LossRows<T> p, bool smooth) {
  using C = Compute<T>;
  wait_for_predecessor();
  const int64_t row = blockIdx.x, target = p.target[row], column = target - p.first;
  if (target == p.ignore_index) {
    if (threadIdx.x == 0) p.parts[row] = {0, 1, 0, 0};
    return;
  }
  const T* const x = p.x + row * p.pitch;
  const CappedLogit<C, kCap> logit{p.softcap};
  LogitPart<C> all = read_row(p, x, logit, smooth);
  if (threadIdx.x != 0) return;
  const bool exists = target >= 0 && target < p.classes;
  all.sum *= LogitExp<T>(finite_top(all.top)).left_out();
  all.chosen = exists ? C{0} : C{NAN};
  if (exists && column >= 0 && column < p.n) all.chosen = logit(to_compute(x[column]));
  p.parts[row] = all;
}

// The gradient of a shard's logits in their place, from the log-sum-exp of all classes.
template <class T, bool kCap>
__global__ void __launch_bounds__(kLossThreads) loss_gradient_kernel(LossRows<T> p) {
  using C = Compute<T>;
  wait_for_predecessor();
  const int64_t row = blockIdx.x, target = p.target[row], column = target - p.first;
  T* const x = p.x + row * p.pitch;
  if (target == p.ignore_index) return write_zeros(p, x);
  const bool exists = target >= 0 && target < p.classes, here = column >= 0 && column < p.n;
  const C factor = exists ? p.factor[p.factor_per_row ? row : 0] : C{NAN};
  write_gradient<T, kCap>(p, x, exists && here ? static_cast<int>(column) : -1, p.lse[row], factor,
                          CappedLogit<C, kCap>{p.softcap});
}

// One block computes the LossFactors.
template <class C>
__global__ void __launch_bounds__(kLossThreads)
    loss_factors_kernel(const int64_t* target, int64_t rows, int64_t ignore_index, bool mean,
                        bool later, const C* dloss, C* factor, C* scale) {
  wait_for_predecessor();
  LossSum mine{};
  if (mean) {
    for (int64_t i = threadIdx.x; i < rows; i += blockDim.x) {
      mine.count += target[i] != ignore_index ? 1.0 : 0.0;
    }
  }
  const double count = sum_block(mine).count;
  if (threadIdx.x != 0) return;
  const C inverse = count > 0 ? static_cast<C>(1 / count) : C{1};
  const C given = dloss != nullptr ? *dloss : C{1};
  *factor = later ? given : given * inverse;
  *scale = later ? inverse : C{1};
}

}  // namespace fusedops
