// Products of one row as the kernel takes them that reads every row of a weight once
// (kernels/thin/thin_dots.cuh). Plain structs; no torch, no CUDA header.
#pragma once

#include <algorithm>
#include <numeric>

#include "csrc/common/activation.h"
#include "csrc/common/dtype.h"
#include "csrc/common/int_math.h"

namespace fusedops::thin {

inline constexpr int kDotThreads = 256, kDotWarps = kDotThreads / 32;
inline constexpr int kManyDots = 4;               // that a warp forms at a time, or one
inline constexpr int kMostDotBlocks = 8;          // that share K: a thread block cluster
inline constexpr int64_t kDotShared = 64 * 1024;  // bytes of x of a block, where it can be
inline constexpr int64_t kMostDotColumns = int64_t{1} << 26, kMostDotK = int64_t{1} << 30;

// d (n,) = act(w (n, k) @ x (k,) + bias (n,)), and preact without the activation. x and rows of w
// are contiguous and begin at any element.
struct Dots {
  DType dtype;
  int64_t n, k;
  const void* x;
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

// Bytes of shared memory: x, the sums of warps and those of the block.
constexpr int64_t dots_bytes(const DotsPlan& plan) {
  return int64_t{plan.slice} * 16 + int64_t{2} * kDotWarps * plan.rows * 4;
}

// Many rows to a block, since each block brings x: rather than fewer, blocks share K.
inline DotsPlan dots_plan(const Dots& p, int sm_count, bool clusters) {
  const int64_t unit = 16 / dtype_bytes(p.dtype), units = std::max<int64_t>(p.k / unit, 1);
  DotsPlan plan{.period = int(std::min(unit / std::gcd(p.w_stride % unit, unit), p.n)),
                .rows = kManyDots,
                .warps = 1,
                .cluster = 1,
                .slice = int(units),
                .blocks = 0};
  const auto blocks = [&] {
    const int64_t of_a_place = ceil_div(p.n, int64_t{plan.period});
    return plan.period * ceil_div(of_a_place, plan.block_rows()) * plan.cluster;
  };
  // Whether a lane has more than two steps along K.
  const auto is_long = [&] { return plan.slice > 64 * plan.warps; };
  while (clusters && plan.cluster < kMostDotBlocks &&
         (dots_bytes(plan) > kDotShared || (is_long() && blocks() < 3 * sm_count / 2))) {
    plan.cluster *= 2;
    plan.slice = int(ceil_div(units, int64_t{plan.cluster}));
  }
  if (blocks() < sm_count) plan.rows = 1;
  while (plan.warps < kDotWarps && is_long() && blocks() < sm_count) plan.warps *= 2;
  plan.blocks = blocks() / plan.cluster;
  return plan;
}

}  // namespace fusedops::thin
