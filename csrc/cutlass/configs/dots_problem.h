// Products of a few rows as the kernel takes them that reads every row of a weight once
// (kernels/thin/thin_dots.cuh). Plain structs; no torch, no CUDA header.
#pragma once

#include <algorithm>
#include <numeric>

#include "csrc/common/activation.h"
#include "csrc/common/dtype.h"
#include "csrc/common/int_math.h"

namespace fusedops::thin {

inline constexpr int64_t kFewRows = 8;  // of x
inline constexpr int kDotThreads = 256, kDotWarps = kDotThreads / 32;
inline constexpr int kManyDots = 4;               // that a warp forms at a time, or one
inline constexpr int kMostDotBlocks = 8;          // that share K: a thread block cluster
inline constexpr int64_t kDotShared = 64 * 1024;  // bytes of x of a block, where it can be
inline constexpr int64_t kMostDotColumns = int64_t{1} << 26, kMostDotK = int64_t{1} << 30;

// d (m, n) = act(x (m, k) @ w (n, k).T + bias (n,)), and preact without the activation. Rows of x
// and w are contiguous and begin at any element.
struct Dots {
  DType dtype;
  int64_t m, n, k;
  const void* x;
  int64_t x_stride;
  const void* w;
  int64_t w_stride;
  const void* bias;  // or null
  void* d;           // contiguous, as is preact
  void* preact;      // or null
  Activation activation;
};

// Rows of w that begin at the same place of a unit of 16 bytes are `period` apart: the rows of a
// block are such ones, so that one copy of x in shared memory meets units of all of them. A warp
// forms `rows` dot products at a time; `warps` of a block and `cluster` blocks share K, of which a
// block has `slice` units.
struct DotsPlan {
  int period, rows, warps, cluster;
  int slice;
  int64_t blocks;  // of a cluster's rank

  constexpr int groups() const { return kDotWarps / warps; }
  constexpr int64_t block_rows() const { return int64_t{groups()} * rows; }
};

constexpr int rows_of_x(int64_t m) { return m <= 1 ? 1 : m <= 2 ? 2 : m <= 4 ? 4 : 8; }

// Bytes of shared memory: x, the sums of warps and those of the block.
constexpr int64_t dots_bytes(const DotsPlan& plan, int64_t m) {
  return int64_t{plan.slice} * 16 * rows_of_x(m) +
         int64_t{2} * kDotWarps * plan.rows * rows_of_x(m) * 4;
}

inline DotsPlan dots_plan(const Dots& p, int sm_count, bool clusters) {
  const int64_t unit = 16 / dtype_bytes(p.dtype), units = std::max<int64_t>(p.k / unit, 1);
  DotsPlan plan{.period = int(std::min(unit / std::gcd(p.w_stride % unit, unit), p.n)),
                .rows = kManyDots,
                .warps = 1,
                .cluster = 1,
                .slice = int(units),
                .blocks = 0};
  const auto blocks = [&] {
    return plan.period * ceil_div(ceil_div(p.n, int64_t{plan.period}), plan.block_rows());
  };
  // Steps of a lane along K.
  const auto steps = [&] { return ceil_div(int64_t{plan.slice}, int64_t{32} * plan.warps); };
  while (plan.warps < kDotWarps && (steps() > 16 || (steps() > 2 && blocks() < 2 * sm_count))) {
    plan.warps *= 2;
  }
  if (blocks() < 2 * sm_count) plan.rows = 1;
  while (
      clusters && plan.cluster < kMostDotBlocks &&
      ((steps() > 2 && blocks() * plan.cluster < sm_count) || dots_bytes(plan, p.m) > kDotShared)) {
    plan.cluster *= 2;
    plan.slice = int(ceil_div(units, int64_t{plan.cluster}));
  }
  plan.blocks = blocks();
  return plan;
}

}  // namespace fusedops::thin
