// Products of few features by many, in 16 bits, as the kernel takes them that writes whole units
// wherever rows of d begin (kernels/thin/thin_wide.cuh). Plain structs; no torch, no CUDA header.
#pragma once

#include "csrc/cutlass/configs/thin_problem.h"

namespace fusedops::thin {

inline constexpr int kWideThreads = 256;
inline constexpr int kWideRows = 64;  // of a tile of d
inline constexpr int kWideItem = 16;  // columns that a warp forms at a time
inline constexpr int64_t kMostWideK = 64, kLeastWide = 16;

// A block has `part` of the columns of d. In shared memory a tile of it is one run, where it is one
// in memory, or rows of `line_units` units of 16 bytes: both begin where they do between multiples
// of 16 bytes in memory.
struct WidePlan {
  int parts, part;
  int padded_k;
  int line_units;  // 0: one run
  int tile_units;

  constexpr int columns() const { return int(round_up(part, kWideItem)); }
  // Elements between rows of x and of w: without bank conflicts for ldmatrix.
  constexpr int stride() const { return padded_k + 8; }
  constexpr int bytes() const {
    return tile_units * 16 + (kWideRows + columns()) * stride() * 2 + columns() * 4;
  }
};

constexpr WidePlan wide_plan(int64_t n, int64_t k) {
  WidePlan p{};
  p.padded_k = k <= 16 ? 16 : k <= 32 ? 32 : 64;
  p.parts = int(ceil_div(n, p.padded_k > 32 ? 128 : 256));
  p.part = int(p.parts > 1 ? round_up(ceil_div(n, p.parts), kWideItem) : n);
  // NOTE: rows of whole units that follow each other would meet in few banks. An odd number of
  // units does not.
  const bool run = p.parts == 1 && n % kWideItem != 0;
  p.line_units = run ? 0 : (p.columns() / 8 + 1) | 1;
  p.tile_units = run ? int(ceil_div(kWideRows * n + 7, 8)) : kWideRows * p.line_units;
  return p;
}

}  // namespace fusedops::thin
