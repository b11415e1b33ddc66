// What kernels over rows of logits share: sums of exponentials that threads form and join, the loss
// of a row, and sums of losses.
#pragma once

#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/row_chunk.cuh"
#include "csrc/common/device/row_exp.cuh"

namespace fusedops {

// Loads a chunk past the first-level cache, which saves 6 % of the time of long rows.
template <class T, int kVec>
__device__ __forceinline__ Packed<T, kVec> load_passing(const T* from) {
  static_assert(sizeof(T) * kVec == 16);
  Packed<T, kVec> out;
  asm("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(out.word[0]), "=r"(out.word[1]), "=r"(out.word[2]), "=r"(out.word[3])
      : "l"(from));
  return out;
}

// Exponentials relative to a top. Half logits: 2^(x log2(e) - base) by one FMA; what the rounding
// of base leaves out is a factor that the whole sum shares.
template <class T>
struct LogitExp {
  using C = Compute<T>;
  C top, factor = 1, base;

  __device__ __forceinline__ explicit LogitExp(C top) : top(top) {
    if constexpr (kFastExp<T>) factor = exponent_factor<T>(top);
    base = scaled(top);
  }
  __device__ __forceinline__ C of(C x) const {
    if constexpr (kFastExp<T>) return ex2_approx(fmaf(x, factor, -base));
    return standard_exp(x - base);
  }
  // What a sum relative to another top is multiplied by.
  __device__ __forceinline__ C ratio(C other) const {
    if constexpr (kFastExp<T>) return ex2_approx(scaled(other) - base);
    return standard_exp(other - base);
  }
  __device__ __forceinline__ C left_out() const {
    if constexpr (kFastExp<T>) return ex2_approx(-fmaf(top, factor, -base));
    return 1;
  }

 private:
  __device__ __forceinline__ C scaled(C x) const {
    if constexpr (kFastExp<T>) return __fmul_rn(x, factor);
    return x;
  }
};

// What is known of a row, or of a part of it. chosen: the target's logit; NaN where that lies
// outside of the row, or in another part.
template <class C>
struct alignas(4 * sizeof(C)) LogitPart {
  C top, sum, values, chosen;
};

// The lanes of a row in a warp, or a block; a lean RowTeam.
template <bool kInWarp>
struct LossTeam {
  int lanes, index, size;
  __device__ __forceinline__ explicit LossTeam(int lanes)
      : lanes(kInWarp ? lanes : 32),
        index(kInWarp ? static_cast<int>(threadIdx.x) & (lanes - 1)
                      : static_cast<int>(threadIdx.x)),
        size(kInWarp ? lanes : static_cast<int>(blockDim.x)) {}

  // Joins the parts of the lanes that the row has in this warp.
  template <class T, class C>
  __device__ __forceinline__ void join(LogitPart<C>& part, bool smooth) const {
    const C mine = part.top;
    part.top = fold_lanes(part.top, lanes, [](C a, C b) { return larger(a, b); });
    const auto add = [](C a, C b) { return a + b; };
    part.sum = fold_lanes(part.sum * LogitExp<T>(finite_top(part.top)).ratio(mine), lanes, add);
    if (smooth) part.values = fold_lanes(part.values, lanes, add);
  }
};

template <class T, class C>
__device__ __forceinline__ C row_loss(const LogitPart<C>& row, C smoothing, int64_t n, C& lse) {
  const C top = finite_top(row.top);
  const C log_sum = standard_log(row.sum * LogitExp<T>(top).left_out());
  lse = top + log_sum;
  const C loss = (1 - smoothing) * (top - row.chosen + log_sum);
  if (smoothing == 0) return loss;
  return loss + smoothing * (lse - row.values / static_cast<C>(n));
}

// The loss of several rows and how many of them count.
struct LossSum {
  double loss, count;

  __device__ __forceinline__ void add(const LossSum& other) {
    loss += other.loss;
    count += other.count;
  }
};

inline constexpr int kLossThreads = 1024;  // the largest block that adds losses up

// Adds up the sums of a block's threads, in a fixed order, for its first thread.
__device__ __forceinline__ LossSum sum_block(LossSum mine) {
  __shared__ LossSum warps[kLossThreads / 32];
  const auto sum_warp = [&] {
#pragma unroll
    for (int width = 16; width > 0; width /= 2) {
      mine.add({__shfl_xor_sync(~0u, mine.loss, width), __shfl_xor_sync(~0u, mine.count, width)});
    }
  };
  sum_warp();
  if (blockDim.x == 32) return mine;
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x >= 32) return mine;
  mine = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : LossSum{};
  sum_warp();
  return mine;
}

// What the loss of all rows becomes; scale: what its gradient is multiplied by for each row, or
// null.
template <class O, class C>
struct LossOut {
  O* loss;
  C* scale;
  bool mean;

  __device__ __forceinline__ void write(const LossSum& all) const {
    const double value = mean ? all.loss / all.count : all.loss;
    *loss = from_compute<O>(static_cast<Compute<O>>(value));
    if (scale != nullptr) *scale = static_cast<C>(1 / all.count);
  }
};

// Adds up sums[count], by one block.
template <class O, class C>
__global__ void __launch_bounds__(kLossThreads)
    cross_entropy_sum_kernel(const LossSum* sums, int64_t count, LossOut<O, C> out) {
  wait_for_predecessor();
  LossSum total{};
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) total.add(sums[i]);
  total = sum_block(total);
  if (threadIdx.x == 0) out.write(total);
}

}  // namespace fusedops
