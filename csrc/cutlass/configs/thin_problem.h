// Products whose time is that of memory, as the streaming kernels take them (kernels/thin): a
// matrix of many rows by one with a side of a few elements, and sums over many rows. Plain structs;
// no torch, no CUDA header.
#pragma once

#include <algorithm>

#include "csrc/common/activation.h"
#include "csrc/common/dtype.h"
#include "csrc/common/int_math.h"

namespace fusedops::thin {

inline constexpr int64_t kFew = 32;        // elements of the short side
inline constexpr int64_t kMostWide = 256;  // of the other side, where it is not streamed
inline constexpr int64_t kMostLong = 4096;
inline constexpr int64_t kMinRows = 4096;
inline constexpr int kThreads = 128;
// A tile's bytes: as many are enough; with padded lines at most so many are in shared memory.
inline constexpr int kTileBytes = 8192, kMostTileBytes = 24 * 1024;
inline constexpr int kMostRunBytes = 32 * 1024;  // of one that is a run of long rows
inline constexpr int kStages = 3;                // of the ring of tiles in shared memory
inline constexpr int kSharedLimit = 160 * 1024;  // what an A100 has

// A matrix read line by line: element (i, j) lies at i * stride + j, or, where lines are columns,
// at i + j * stride.
struct Lines {
  const void* data;
  int64_t stride;
  bool columns;
};

// d (m, n) = act(x (m, k) @ w (n, k).T + bias (n,)), and preact without the activation.
struct Rows {
  DType dtype;
  int64_t m, n, k;
  Lines x;
  const void* w;
  int64_t w_stride_n, w_stride_k;
  const void* bias;  // or null
  void* d;           // contiguous, as is preact
  void* preact;      // or null
  Activation activation;
};

// d (n, k) = the sums over m rows of a (m, n)[:, :, None] * b (m, k)[:, None, :].
struct Sums {
  DType dtype;
  int64_t m, n, k;
  Lines a, b;
  bool fp32_out;             // of what the caller makes of the blocks' sums
  float* partial = nullptr;  // partial_floats()
};

// ---- shared memory ----

constexpr bool is_16_bit(DType dtype) { return dtype != DType::kFloat32; }

// How a tile lies in shared memory and how it gets there: line by line in units of 16 bytes or of a
// word. With words a line of 16-bit elements may begin in the middle of one. A flat tile is whole
// rows of a dense matrix, one run: it begins `head` elements behind a multiple of 16 bytes, as all
// tiles of the matrix do, since a tile's rows are a multiple of 16.
struct TileLayout {
  int lines, length;       // that are copied, and elements of a line
  int units;               // of a line
  int stride;              // words between lines
  int row_elements, head;  // of a flat tile: between rows, and before the first
  int total;               // words
  bool wide, flat;
};

// Whether every line begins with so many bytes.
inline bool lines_begin(const Lines& m, int64_t element_bytes, int bytes) {
  return reinterpret_cast<uintptr_t>(m.data) % bytes == 0 && m.stride * element_bytes % bytes == 0;
}

// `cols` of the matrix' `all_cols`. Columns from there to `padded_cols` are there as zeros, but for
// flat tiles, where they are the next row's. rows: a multiple of 16.
inline TileLayout tile_layout(DType dtype, const Lines& m, int rows, int cols, int64_t all_cols,
                              int padded_cols) {
  const int bytes = int(dtype_bytes(dtype)), vector = 16 / bytes, word = 4 / bytes;
  TileLayout t{};
  t.wide = lines_begin(m, bytes, 16) && (m.columns || cols % vector == 0);
  t.flat = !t.wide && !m.columns && m.stride == cols && all_cols == cols;
  if (t.flat) {
    t.wide = true;
    t.lines = 1;
    t.length = rows * cols;
    t.row_elements = cols;
    t.head = int(reinterpret_cast<uintptr_t>(m.data) % 16 / bytes);
    const int elements = t.head + t.length;
    t.units = int(ceil_div(elements, vector));
    t.total =
        int(round_up(ceil_div(std::max(elements + padded_cols - cols, t.units * vector), word), 4));
    return t;
  }
  t.lines = m.columns ? cols : rows;
  t.length = m.columns ? rows : cols;
  const int padded = m.columns ? rows : padded_cols;
  const int extra = word == 1 || lines_begin(m, bytes, 4) ? 0 : 1;
  t.units = t.wide ? t.length / vector : int(ceil_div(t.length, word)) + extra;
  const int least = int(ceil_div(padded, word)) + extra;
  // NOTE: without bank conflicts, for lanes that read a row each (a vector of it, where lines are
  // wide) and for those of an MMA.
  t.stride = word == 1 && !t.wide ? least | 1 : least + (12 - least % 8) % 8;
  t.total = int(round_up(int64_t{m.columns ? padded_cols : rows} * t.stride, 4));
  return t;
}

// ---- rows ----

inline constexpr int kPartColumns = 128;  // of d, that a block forms

// A block has `part` of the columns of d. `tile_rows` rows are a tile. A warp's item is 32 or 64 of
// its rows by `group` columns, over all of K or, with several chunks, `chunk` of K at a time.
struct RowsPlan {
  int parts, part;
  int tile_rows, group, groups, items;
  int chunk, chunks;
  int padded_k;    // of w in shared memory
  int w_stride;    // words between its lines
  int sum_stride;  // of the tile of sums in shared memory
  TileLayout x;
  int w_words, bias_words, sum_words;

  constexpr int bytes() const { return (kStages * x.total + w_words + bias_words + sum_words) * 4; }
};

constexpr int rows_group(DType dtype, int64_t n) {
  if (is_16_bit(dtype)) return n <= 8 ? 8 : n <= 16 ? 16 : 32;
  return n <= 1 ? 1 : n <= 2 ? 2 : n <= 4 ? 4 : n <= 8 ? 8 : 16;
}

inline RowsPlan rows_plan(DType dtype, const Lines& x, int64_t n, int64_t k) {
  const bool half = is_16_bit(dtype);
  RowsPlan p{};
  p.parts = int(ceil_div(n, kPartColumns));
  p.part = int(p.parts > 1 ? round_up(ceil_div(n, p.parts), 8) : n);
  p.group = rows_group(dtype, p.part);
  p.groups = int(ceil_div(p.part, p.group));
  const int item_rows = half ? 32 : 64, step = half ? 16 : 4;
  // Rows that do not begin at 16 bytes are one run, if all of K is in the tile.
  const bool runs = !x.columns && x.stride == k && !lines_begin(x, dtype_bytes(dtype), 16) &&
                    item_rows * k * dtype_bytes(dtype) <= kMostRunBytes;
  const int most = half ? 64 : n <= 16 ? 16 : 32;
  p.chunk = int(n > kFew || runs ? k : std::min<int64_t>(k, most));
  p.chunks = int(ceil_div(k, p.chunk));
  // Four items of rows, or more where those are few bytes; where fewer fit, more of columns.
  int row_items = half ? (n > kFew ? 2 : 4) : p.groups >= 3 ? 1 : 4 / p.groups;
  while (runs && row_items > 1 && row_items * item_rows * k * dtype_bytes(dtype) > kMostRunBytes) {
    row_items /= 2;
  }
  while (runs && row_items * p.groups < kThreads / 32 && p.group > (half ? 8 : 1)) {
    p.group /= 2;
    p.groups = int(ceil_div(p.part, p.group));
  }
  const auto tile_of = [&](int items) {
    return tile_layout(dtype, x, items * item_rows, p.chunk, k, int(round_up(p.chunk, step)));
  };
  while (n <= kFew && p.chunks == 1 && row_items < 16 &&
         row_items * item_rows * (n + k) * dtype_bytes(dtype) < kTileBytes &&
         tile_of(2 * row_items).total * 4 <= kMostTileBytes) {
    row_items *= 2;
  }
  p.x = tile_of(row_items);
  p.tile_rows = row_items * item_rows;
  p.items = row_items * p.groups;
  p.padded_k = int(p.chunks > 1 ? int64_t{p.chunks} * p.chunk : round_up(k, step));
  const int columns = p.groups * p.group;
  p.w_stride = half ? p.padded_k / 2 + (12 - p.padded_k / 2 % 8) % 8 : columns;
  p.w_words = int(round_up(half ? columns * p.w_stride : p.padded_k * p.w_stride, 4));
  p.bias_words = int(round_up(columns, 4));
  // NOTE: rows of sums lie as those of d do, but where lanes that store would meet in few banks.
  p.sum_stride = p.part + (p.part % (half ? 16 : 8) == 0 ? 4 : 0);
  p.sum_words = int(round_up(p.tile_rows * p.sum_stride, 4)) + 8;  // a unit may begin with the last
  return p;
}

// ---- sums ----

inline constexpr int kSumThreads = 256;

// A thread (fp32) or warp (16-bit) has `own_n` by `own_k` of the sums of a block, which are those
// of `block_n` by `block_k`; `splits` of them share the rows of a tile.
struct SumsPlan {
  int own_n, own_k;
  int block_n, block_k;
  int tiles_n, tiles_k, splits;
  int blocks_n, blocks_k;  // that share the sums
  int tile_rows;
  TileLayout a, b;

  constexpr int tiles() const { return tiles_n * tiles_k; }
  constexpr int bytes() const {
    const int ring = kStages * (a.total + b.total);
    return std::max(ring, splits * tiles() * own_n * own_k) * 4;
  }
};

inline SumsPlan sums_plan(DType dtype, const Lines& a, const Lines& b, int64_t n, int64_t k) {
  const bool half = is_16_bit(dtype);
  SumsPlan p{};
  if (half) {
    p.own_n = n <= 16 ? 16 : 32;
    p.own_k = k <= 8 ? 8 : k <= 16 ? 16 : k <= 32 ? 32 : 64;
  } else {
    p.own_n = n > 64 ? 8 : 4;
    p.own_k = n <= 64 && k > 64 ? 8 : 4;
  }
  p.blocks_n = int(ceil_div(n, kMostWide));
  p.blocks_k = int(ceil_div(k, kMostWide));
  // NOTE: a block's columns begin where lines may.
  p.block_n = int(p.blocks_n > 1 ? round_up(ceil_div(n, p.blocks_n), 8) : n);
  p.block_k = int(p.blocks_k > 1 ? round_up(ceil_div(k, p.blocks_k), 8) : k);
  p.tiles_n = int(ceil_div(p.block_n, p.own_n));
  p.tiles_k = int(ceil_div(p.block_k, p.own_k));
  p.splits = half ? kSumThreads / 32 / p.tiles() : std::min(kSumThreads / p.tiles(), 128);
  p.tile_rows = half ? p.splits * 16 : std::max(16, p.splits);
  p.tile_rows = int(round_up(p.tile_rows, 16));
  const auto lay_tiles = [&] {
    p.a = tile_layout(dtype, a, p.tile_rows, p.block_n, n, p.tiles_n * p.own_n);
    p.b = tile_layout(dtype, b, p.tile_rows, p.block_k, k, p.tiles_k * p.own_k);
    return (p.a.total + p.b.total) * 4;
  };
  while (lay_tiles() * 2 <= kMostTileBytes &&
         p.tile_rows * (p.block_n + p.block_k) * dtype_bytes(dtype) < kTileBytes) {
    p.tile_rows *= 2;
  }
  return p;
}

// Blocks that walk over the rows, for each part of the sums.
inline int sums_slots(const SumsPlan& plan, int64_t m, int sm_count) {
  const int parts = plan.blocks_n * plan.blocks_k;
  const int per_sm = std::clamp(220 * 1024 / (plan.bytes() + 1024), 1, 2);
  const int64_t most = std::max(1, sm_count * per_sm / parts);
  return int(std::min<int64_t>(most, ceil_div(m, plan.tile_rows)));
}

inline int64_t partial_floats(const Sums& p, int sm_count) {
  const SumsPlan plan = sums_plan(p.dtype, p.a, p.b, p.n, p.k);
  return sums_slots(plan, p.m, sm_count) * p.n * p.k;
}

}  // namespace fusedops::thin
