// Products of few features by many, in 16 bits, as the kernel takes them that writes whole units
// wherever rows of d begin (kernels/thin/thin_wide.cuh). Plain structs; no torch, no CUDA header.
#pragma once

#include <algorithm>

#include "csrc/cutlass/configs/thin_problem.h"

namespace fusedops::thin {

inline constexpr int kWideThreads = 256, kWideWarps = kWideThreads / 32;
inline constexpr int kWideRows = 16, kWideChunk = 128;  // of d, that a warp writes at a time
inline constexpr int kWideItem = 32;                    // columns that it forms at a time
inline constexpr int kWideWeightBytes = 24 * 1024;      // of w in shared memory
inline constexpr int64_t kMostWideK = 64, kLeastWide = 16;

// A block has `part` of the columns of d, a warp all of them for its rows, in chunks. In shared
// memory a chunk's rows have `line_units` units of 16 bytes.
struct WidePlan {
  int parts, part;
  int padded_k;
  int line_units;

  constexpr int columns() const { return int(round_up(part, kWideItem)); }
  // Elements between columns of w: without bank conflicts for ldmatrix.
  constexpr int stride() const { return padded_k + 8; }
  constexpr int bytes() const {
    return kWideWarps * kWideRows * line_units * 16 + columns() * (stride() * 2 + 4);
  }
};

constexpr WidePlan wide_plan(int64_t n, int64_t k) {
  WidePlan p{};
  p.padded_k = k <= 16 ? 16 : k <= 32 ? 32 : 64;
  const int64_t most = kWideWeightBytes / (p.stride() * 2) / kWideItem * kWideItem;
  p.parts = int(ceil_div(n, most));
  p.part = int(p.parts > 1 ? round_up(ceil_div(n, p.parts), kWideItem) : n);
  // NOTE: odd, or rows would meet in few banks.
  p.line_units = (std::min(p.columns(), kWideChunk) / 8 + 1) | 1;
  return p;
}

}  // namespace fusedops::thin
