// Cross entropy with label smoothing, straight from the logits, and its gradient.
//
//   loss = (1 - s) * (lse - x[target]) + s * (lse - mean(x)),  lse = log(sum(exp(x)))
//   dx = (exp(x - lse) - (1 - s) * [column = target] - s / n) * dloss
//
// The forward reads the logits once and writes lse; the backward reads them once more and writes
// the gradient. Storing the gradient in the forward would save that read only while dloss is 1;
// with any other it costs another read and write of it.
#pragma once

#include "csrc/common/device/logit_rows.cuh"
#include "csrc/common/device/pdl.cuh"

namespace fusedops {

template <class T>
struct CrossEntropy {
  using C = Compute<T>;
  const T* x;             // [rows, n], rows x_stride apart
  const int64_t* target;  // [rows]
  C* lse;                 // [rows]
  int64_t x_stride, ignore_index;
  C smoothing;
};

// Largest value, sum of exponentials relative to it, sum of values where `smooth`.
template <class T>
struct LogitSums {
  using C = Compute<T>;
  using Exp = LogitExp<T>;
  static constexpr int kVec = kChunkOf<T>;
  C top = -static_cast<C>(INFINITY), sum[kSums<kVec>] = {}, values = 0;

  // Chunks from `count` on are of -inf and add nothing.
  template <int kCount>
  __device__ __forceinline__ void add(Packed<T, kVec> (&x)[kCount], int count, bool smooth) {
    const C before = top;
    top = larger(top, largest(x, kCount));
    const Exp exp(finite_top(top));
    const C scale = exp.ratio(before);
#pragma unroll
    for (int i = 0; i < kSums<kVec>; ++i) sum[i] *= scale;
    hold(x);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        sum[e % kSums<kVec>] += exp.of(x[i].at(e));
      }
    }
    if (!smooth) return;
    hold(x);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i >= count) break;
#pragma unroll
      for (int e = 0; e < kVec; ++e) values += x[i].at(e);
    }
  }
  __device__ __forceinline__ void add(T x) {
    const C value = to_compute(x), before = top;
    top = larger(top, value);
    const Exp exp(finite_top(top));
    const C scale = exp.ratio(before);
#pragma unroll
    for (int i = 0; i < kSums<kVec>; ++i) sum[i] *= scale;
    sum[0] += exp.of(value);
    values += value;
  }

  // The part of thread `index` of `size`: kRowChunks chunks at a time. What lies before and behind
  // the aligned chunks goes element by element. also(): called while the last loads are on their
  // way.
  template <class Fn>
  __device__ __forceinline__ void add_row(const T* row, int64_t n, int index, int size, bool smooth,
                                          Fn also) {
    const int before = static_cast<int>(-(reinterpret_cast<uintptr_t>(row) / sizeof(T)) % kVec);
    const int head = before < n ? before : static_cast<int>(n);
    const int64_t chunks = (n - head) / kVec;
    const int ends = static_cast<int>(n - chunks * kVec);
    const T lowest = from_compute<T>(-static_cast<C>(INFINITY));
    const T* const behind = row + chunks * kVec;
    const auto end = [&](int i) { return i < head ? row[i] : behind[i]; };
    const T first = index < ends ? end(index) : lowest;
    const T* body = row + head + int64_t{index} * kVec;
    int64_t left = chunks - index;
#pragma unroll 1
    for (; left > (kRowChunks - 1) * size; left -= kRowChunks * size) {
      Packed<T, kVec> x[kRowChunks];
#pragma unroll
      for (int i = 0; i < kRowChunks; ++i) x[i] = load_passing<T, kVec>(body + i * size * kVec);
      add(x, kRowChunks, smooth);
      body += kRowChunks * size * kVec;
    }
    if (left > size) {
      Packed<T, kVec> x[kRowChunks - 1];
      int count = 0;
#pragma unroll
      for (int i = 0; i + 1 < kRowChunks; ++i) {
        x[i] = splat<T, kVec>(lowest);
        if (i * size >= left) continue;
        x[i] = load_packed<T, kVec>(body + i * size * kVec);
        ++count;
      }
      also();
      add(x, count, smooth);
    } else if (left > 0) {
      Packed<T, kVec> x[1] = {load_packed<T, kVec>(body)};
      also();
      add(x, 1, smooth);
    } else {
      also();
    }
    if (index < ends) add(first);
    for (int i = index + size; i < ends; i += size) add(end(i));
  }
};

inline constexpr int kLossTeam = 128;           // threads, or lanes of several rows
inline constexpr int64_t kMostLossSums = 8192;  // that one block adds up

// What a row contributes, by one thread.
template <class T, class O, class C>
__device__ __forceinline__ LossSum finish_row(const CrossEntropy<T>& p, const LogitPart<C>& all,
                                              int64_t row, bool counted, int64_t n, O* loss) {
  C lse, value = row_loss<T>(all, p.smoothing, n, lse);
  if (!counted) lse = value = 0;
  p.lse[row] = lse;
  if (loss != nullptr) loss[row] = from_compute<O>(Compute<O>(value));
  return {static_cast<double>(value), counted ? 1.0 : 0.0};
}

// A row is shared by gridDim.y teams, which leave `parts` where they are several: [rows, teams].
// loss: [rows] of O, or null; sums: one per row, one per block where rows are more than
// kMostLossSums, or null.
template <class T, class O, bool kInWarp>
__global__ void __launch_bounds__(kLossTeam, kInWarp ? 7 : 8)
    cross_entropy_kernel(CrossEntropy<T> p, O* loss, LossSum* sums, LogitPart<Compute<T>>* parts,
                         int64_t rows, int64_t n, int lanes) {
  using C = Compute<T>;
  __shared__ LogitPart<C> warps[kLossTeam / 32];
  __shared__ LossSum totals[kLossTeam];  // NOTE: registers are few
  const LossTeam<kInWarp> team(lanes);
  const int log_lanes = kInWarp ? __ffs(lanes) - 1 : 0, lane = threadIdx.x % 32;
  const int teams = kInWarp ? static_cast<int>(blockDim.x) >> log_lanes : 1;
  const int64_t stride = int64_t{gridDim.x} * teams;
  const bool smooth = p.smoothing != 0, sums_rows = rows <= kMostLossSums;
  const auto target_of = [&](int64_t row) {
    const bool chooses = row < rows && team.index == 0 && blockIdx.y == 0;
    return chooses ? p.target[row] : p.ignore_index;
  };
  const int sub = kInWarp ? threadIdx.x >> log_lanes : 0;
  int64_t row = int64_t{blockIdx.x} * teams + sub;
  wait_for_predecessor();
  int64_t next_target = target_of(row);
  totals[threadIdx.x] = {};
  for (; row - sub < rows; row += stride) {
    const bool active = row < rows;
    const T* from = p.x + row * p.x_stride;
    const int64_t target = next_target;
    next_target = target_of(row + stride);
    const bool counted = target != p.ignore_index, exists = counted && target >= 0 && target < n;
    T logit = from_compute<T>(C{0});
    LogitSums<T> mine;
    // NOTE: the logit of the target, whose address comes from memory as well, would hold up the
    // row.
    mine.add_row(from, active ? n : 0, blockIdx.y * team.size + team.index, gridDim.y * team.size,
                 smooth, [&] {
                   if (exists) logit = from[target];
                 });
    LogitPart<C> all{mine.top, sum_of(mine.sum), mine.values, C{0}};
    team.template join<T>(all, smooth);
    if constexpr (!kInWarp) {
      if (lane == 0) warps[threadIdx.x / 32] = all;
      __syncthreads();
      if (threadIdx.x < 32) {
        all = {-static_cast<C>(INFINITY), 0, 0, 0};
        if (lane < static_cast<int>(blockDim.x) / 32) all = warps[lane];
        team.template join<T>(all, smooth);
      }
      if (row + stride < rows) __syncthreads();  // the next row's
    }
    if (!active || team.index != 0) continue;
    all.chosen = exists ? to_compute(logit) : C{NAN};
    if (gridDim.y > 1) {
      parts[row * gridDim.y + blockIdx.y] = all;
    } else {
      const LossSum sum = finish_row(p, all, row, counted, n, loss);
      if (!sums_rows) {
        totals[threadIdx.x].add(sum);
      } else if (sums != nullptr) {
        sums[row] = sum;
      }
    }
  }
  if (sums == nullptr || sums_rows) return;
  const LossSum total = sum_block(totals[threadIdx.x]);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

inline constexpr int kMostShares = 32;  // of a row: a lane for each

// Joins the `shares` parts of every row, a warp for a row. out.loss: null where `loss` is not.
template <class T, class O>
__global__ void __launch_bounds__(kLossThreads)
    cross_entropy_join_kernel(CrossEntropy<T> p, const LogitPart<Compute<T>>* parts, int shares,
                              int64_t rows, int64_t n, O* loss, LossOut<O, Compute<T>> out) {
  using C = Compute<T>;
  const LossTeam<true> team(32);
  wait_for_predecessor();
  LossSum total{};
  for (int64_t row = threadIdx.x / 32; row < rows; row += blockDim.x / 32) {
    LogitPart<C> all{-static_cast<C>(INFINITY), 0, 0, 0};
    if (team.index < shares) all = parts[row * shares + team.index];
    const bool counted = p.target[row] != p.ignore_index;
    team.join<T>(all, true);
    if (team.index == 0) total.add(finish_row(p, all, row, counted, n, loss));
  }
  if (loss != nullptr) return;
  total = sum_block(total);
  if (threadIdx.x == 0) out.write(total);
}

}  // namespace fusedops
