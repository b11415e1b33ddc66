// What the streaming kernels share: tiles of a matrix in shared memory.
//
// A tile is copied with cp.async: 16 bytes at a time where its lines allow it or where it is one
// run, else word by word (4 bytes). At the speed of memory an SM has 30 instructions of a thread
// for each word. A 16-bit line that begins in the middle of a word brings the whole word, and
// readers skip its first half.
#pragma once

#include "csrc/common/device/async_copy.cuh"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/mma.cuh"
#include "csrc/common/device/pdl.cuh"
#include "csrc/cutlass/configs/thin_problem.h"

namespace fusedops::thin {

// Copies `bytes` of a unit of 4 or 16 bytes, and zeros the rest of it. NOTE: a part is not copied
// asynchronously: its size goes into the low bits of the address, and compute-sanitizer, which does
// not know of that, reports the whole unit.
template <class T, int kUnit>
__device__ __forceinline__ void copy_unit(uint32_t* shared, const void* source, int bytes) {
  if (bytes % kUnit != 0) {
    const auto* from = static_cast<const T*>(source);
    auto* to = reinterpret_cast<T*>(shared);
#pragma unroll
    for (int i = 0; i < kUnit / int(sizeof(T)); ++i) {
      to[i] = i * int(sizeof(T)) < bytes ? from[i] : T(0.0f);
    }
  } else if constexpr (kUnit == 16) {
    copy_async(shared_address(shared), source, bytes);
  } else {
    copy_async_cached<kUnit>(shared_address(shared), source, bytes);
  }
}

// ---- global memory ----

// The matrix (rows, cols) that tiles are cut from. `word` is its address rounded down to a word, or
// where tiles are flat, to 16 bytes; `first` the elements from there to its own first one.
struct Source {
  const char* word;
  int first;
  int64_t stride;
  int64_t rows, cols;
  bool columns;
  TileLayout layout;
};

template <class T>
inline Source make_source(const Lines& m, int64_t rows, int64_t cols, const TileLayout& layout) {
  const auto address = reinterpret_cast<uintptr_t>(m.data);
  const int unit = layout.flat ? 16 : 4;
  return {.word = reinterpret_cast<const char*>(address / unit * unit),
          .first = int(address % unit / sizeof(T)),
          .stride = m.stride,
          .rows = rows,
          .cols = cols,
          .columns = m.columns,
          .layout = layout};
}

// The lines of a tile that are inside of the matrix.
struct TileLines {
  int64_t begin, stride;  // elements from Source::word
  int lines, length;
};

template <class T, int kBlock, int kUnit>
__device__ __forceinline__ void start_lines(const Source& s, const TileLines& inside,
                                            uint32_t* tile) {
  constexpr int kSize = sizeof(T), kPerUnit = kUnit / kSize;
  const int units = s.layout.units, step_lines = kBlock / units, step_units = kBlock % units;
  int line = int(threadIdx.x) / units, unit = int(threadIdx.x) % units;
  while (line < s.layout.lines) {
    const int64_t element = inside.begin + line * inside.stride;
    const int skipped = kUnit == 4 ? int(element & (kPerUnit - 1)) : 0;
    // Elements of the unit that are the line's, or come before them.
    const int left = line < inside.lines ? inside.length + skipped - unit * kPerUnit : 0;
    const int bytes = min(max(left, 0), kPerUnit) * kSize;
    const char* source = bytes > 0 ? s.word + (element - skipped) * kSize + unit * kUnit : s.word;
    copy_unit<T, kUnit>(tile + line * s.layout.stride + unit * (kUnit / 4), source, bytes);
    line += step_lines;
    unit += step_units;
    if (unit >= units) unit -= units, ++line;
  }
}

// Starts the copies of the tile whose first element is (row, col); what lies outside of the matrix
// becomes zero.
template <class T, int kBlock>
__device__ __forceinline__ void start_tile(const Source& s, uint32_t* tile, int64_t row,
                                           int64_t col) {
  const TileLayout& layout = s.layout;
  TileLines inside;
  if (layout.flat) {
    inside = {row * s.cols, 0, 1,
              layout.head + int(min(int64_t{layout.length}, (s.rows - row) * s.cols))};
  } else {
    const int64_t line0 = s.columns ? col : row, place0 = s.columns ? row : col;
    const int64_t lines = s.columns ? s.cols : s.rows, length = s.columns ? s.rows : s.cols;
    inside = {s.first + line0 * s.stride + place0, s.stride,
              int(min(int64_t{layout.lines}, lines - line0)),
              int(min(int64_t{layout.length}, length - place0))};
  }
  if (layout.wide) {
    start_lines<T, kBlock, 16>(s, inside, tile);
  } else {
    start_lines<T, kBlock, 4>(s, inside, tile);
  }
}

// ---- shared memory ----

// The elements of a tile: where (row, column) lies.
template <class T>
struct Tile {
  const T* data;
  int row_stride, col_stride;  // elements
  int first, row_parity, col_parity;

  // (row0, col0) is the tile's first element in the matrix.
  __device__ __forceinline__ Tile(const Source& s, const uint32_t* words, int64_t row0,
                                  int64_t col0) {
    constexpr int kPerWord = 4 / sizeof(T);
    const int line = s.layout.flat ? s.layout.row_elements : s.layout.stride * kPerWord;
    data = reinterpret_cast<const T*>(words) + s.layout.head;
    row_stride = s.columns ? 1 : line;
    col_stride = s.columns ? line : 1;
    first = row_parity = col_parity = 0;
    if (kPerWord > 1 && !s.layout.wide) {
      const int odd = int(s.stride & 1);
      first = int((s.first + (s.columns ? col0 * s.stride + row0 : row0 * s.stride + col0)) & 1);
      row_parity = s.columns ? 0 : odd;
      col_parity = s.columns ? odd : 0;
    }
  }
  __device__ __forceinline__ T at(int row, int col) const {
    int index = row * row_stride + col * col_stride;
    if constexpr (sizeof(T) == 2) index += (first + row * row_parity + col * col_parity) & 1;
    return data[index];
  }
  // Columns col and col + 1, col even, where rows begin with a word.
  __device__ __forceinline__ uint32_t pair(int row, int col) const {
    return *reinterpret_cast<const uint32_t*>(data + row * row_stride + col);
  }
};

__device__ __forceinline__ uint32_t join(__half low, __half high) {
  return uint32_t{__half_as_ushort(high)} << 16 | __half_as_ushort(low);
}
__device__ __forceinline__ uint32_t join(__nv_bfloat16 low, __nv_bfloat16 high) {
  return uint32_t{__bfloat16_as_ushort(high)} << 16 | __bfloat16_as_ushort(low);
}

}  // namespace fusedops::thin
