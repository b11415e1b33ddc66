// Products of few features by many as the kernel takes them that writes whole units wherever rows
// of d begin (kernels/thin/thin_wide.cuh). Plain structs; no torch, no CUDA header.
#pragma once

#include "csrc/cutlass/configs/thin_problem.h"

namespace fusedops::thin {

inline constexpr int kWideThreads = 256;
inline constexpr int kWideRows = 64;  // of a tile of d, at most
inline constexpr int kWideItem = 32;  // columns that a warp forms at a time, of 16 rows
inline constexpr int64_t kMostWideK = 64, kLeastWide = 16, kWideLeastRows = 1024;
inline constexpr int64_t kRunBytes = 52 * 1024, kRunWeightBytes = 48 * 1024;  // at most

// A block has `part` of the columns of d, `rows` rows at a time. In shared memory they are one run,
// where they are one in memory that does not consist of whole units, or rows of `line_units` units
// of 16 bytes: both begin where they do between multiples of 16 bytes in memory.
struct WidePlan {
  int parts, part;
  int rows;
  int padded_k;
  int element;     // bytes
  int line_units;  // 0: one run
  int tile_units;

  constexpr int columns() const { return int(round_up(part, kWideItem)); }
  // Elements between rows of x and of w: without bank conflicts for ldmatrix.
  constexpr int stride() const { return padded_k + 16 / element; }
  // The logarithm of how many threads write a line of d, one for each unit.
  constexpr int lane_shift() const {
    const int units = part * element / 16;
    return units <= 8 ? 3 : units <= 16 ? 4 : 5;
  }
  constexpr int bytes() const {
    return tile_units * 16 + (kWideRows + columns()) * stride() * element + columns() * 4;
  }
};

// Whether rows of x are read in units of 16 bytes.
inline bool reads_units(DType dtype, const Lines& x, int64_t k) {
  return !x.columns && lines_begin(x, dtype_bytes(dtype), 16) && k % 8 == 0;
}

constexpr WidePlan wide_plan(DType dtype, int64_t n, int64_t k) {
  WidePlan p{};
  p.element = int(dtype_bytes(dtype));
  p.padded_k = k <= 16 ? 16 : k <= 32 ? 32 : 64;
  p.parts = 1;
  p.part = int(n);
  p.rows = kWideRows;
  while (p.rows > 16 && p.rows * n * p.element > kRunBytes) p.rows /= 2;
  const int64_t weight_bytes = round_up(n, kWideItem) * p.stride() * p.element;
  const int unit = 16 / p.element;
  if (n % (2 * unit) != 0 && p.rows * n * p.element <= kRunBytes &&
      weight_bytes <= kRunWeightBytes) {
    p.tile_units = int(ceil_div(p.rows * n + unit - 1, unit));
    return p;
  }
  p.rows = kWideRows;
  p.parts = int(ceil_div(n, (p.padded_k > 32 ? 256 : 512) / p.element));
  if (p.parts > 1) p.part = int(round_up(ceil_div(n, p.parts), 16));
  // NOTE: odd, or rows would meet in few banks.
  p.line_units = (p.columns() / unit + 1) | 1;
  p.tile_units = p.rows * p.line_units;
  return p;
}

}  // namespace fusedops::thin
