// Copies a strided matrix into an aligned, zero-padded, row-major buffer, and such a buffer into a
// dense matrix, 16 bytes per store. Rows that are contiguous in the source are copied straight; a
// source that is contiguous along its rows index is transposed through shared memory, so that both
// sides are coalesced.
#pragma once

#include "csrc/common/device/mma.cuh"
#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/unaligned.cuh"

namespace fusedops {

struct PackShape {
  int64_t rows, cols;              // of the source
  int64_t row_stride, col_stride;  // of the source
  int64_t out_rows, ld;
};

inline constexpr int kPackThreads = 256;

// index / divisor, both not negative.
__device__ __forceinline__ int64_t quotient(int64_t index, int64_t divisor) {
  return max(index, divisor) <= UINT32_MAX
             ? static_cast<uint32_t>(index) / static_cast<uint32_t>(divisor)
             : index / divisor;
}

// ---- source rows are (nearly) contiguous ----

// One 16-byte vector of the output per thread. kContiguous: so are source rows, each for itself.
template <class T, bool kContiguous>
__global__ void __launch_bounds__(kPackThreads)
    pack_rows_kernel(const T* __restrict__ source, T* __restrict__ out, PackShape shape) {
  constexpr int kVector = 16 / sizeof(T);
  using Vector = Vec<T, kVector>;
  const int64_t index = int64_t{blockIdx.x} * kPackThreads + threadIdx.x;
  const int64_t vectors_per_row = shape.ld / kVector;
  if (index >= shape.out_rows * vectors_per_row) return;
  wait_for_predecessor();

  const int64_t row = quotient(index, vectors_per_row);
  const int64_t col = (index - row * vectors_per_row) * kVector;
  const T* first = source + row * shape.row_stride + col * shape.col_stride;
  Vector vector{};
  if (row < shape.rows) {
    const bool whole = kContiguous && col + kVector <= shape.cols;
    const T* end = source + (shape.rows - 1) * shape.row_stride + shape.cols;
    if (!whole || !load_unaligned(first, end, vector)) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (col + i < shape.cols) vector.value[i] = first[i * shape.col_stride];
      }
    }
  }
  reinterpret_cast<Vector*>(out)[index] = vector;
}

// The way back: one vector of a dense matrix (rows, cols) per thread, from rows of row_stride.
template <class T>
__global__ void __launch_bounds__(kPackThreads)
    unpack_rows_kernel(const T* __restrict__ source, T* __restrict__ out, int64_t rows,
                       int64_t cols, int64_t row_stride) {
  constexpr int kVector = 16 / sizeof(T);
  using Vector = Vec<T, kVector>;
  const int64_t first = (int64_t{blockIdx.x} * kPackThreads + threadIdx.x) * kVector;
  if (first >= rows * cols) return;
  wait_for_predecessor();

  int64_t row = quotient(first, cols), col = first - row * cols;
  const T* end = source + (rows - 1) * row_stride + cols;
  Vector vector{};
  const bool whole = col + kVector <= cols;
  if (whole && load_unaligned(source + row * row_stride + col, end, vector)) {
    *reinterpret_cast<Vector*>(out + first) = vector;
    return;
  }
  for (int i = 0; i < kVector && row < rows; ++i) {  // over the end of a row, or the last one
    out[first + i] = source[row * row_stride + col];
    if (++col == cols) col = 0, ++row;
  }
}

// ---- source columns are contiguous ----

inline constexpr int kPackTileBytes = 128;  // of an output row

// A block transposes 256 bytes of as many columns as 128 bytes of an output row have, with 16-byte
// accesses on both sides. Columns begin anywhere; those that a thread reads are a multiple of 16
// bytes apart, so that it shifts all by the same.
template <class T>
struct TransposedTile {
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kUnits = 16;               // of a column
  static constexpr int kRows = kUnits * kVector;  // of the output
  static constexpr int kCols = kPackTileBytes / sizeof(T);
  static constexpr int kStep = kPackThreads / kUnits;  // columns
  static constexpr int kCount = kCols / kStep;

  // NOTE: columns permute their units, so that those which a warp reads at a time lie in different
  // banks.
  static __device__ __forceinline__ int place(int col, int unit) {
    const int key = sizeof(T) == 2 ? col / 8 % 4 * 2 + col % 2 : col / 4 % 8;
    return col * kUnits + (unit ^ key);
  }

  // Memory to shared memory. first: the tile's; zeros where the source has no column.
  static __device__ __forceinline__ void load(const T* first, const T* end, int64_t col_stride,
                                              int rows, int cols, uint4* tile) {
    const int unit = threadIdx.x % kUnits, col = threadIdx.x / kUnits;
    const T* source = first + col * col_stride + unit * kVector;
    const unsigned shift = reinterpret_cast<uintptr_t>(source) % 16;
    const char* from = reinterpret_cast<const char*>(source) - shift;
    const auto* behind = reinterpret_cast<const char*>(end);
    const int bytes = min(rows - unit * kVector, kVector) * int(sizeof(T));
    const int64_t step = kStep * col_stride * int64_t{sizeof(T)};
    const int columns = bytes > 0 ? (cols - col + kStep - 1) / kStep : 0;
    const bool both = int(shift) + bytes > 16;
    uint4 low[kCount] = {}, high[kCount] = {};
    if (from + (kCount - 1) * step + 32 <= behind) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const auto* at = reinterpret_cast<const uint4*>(from + i * step);
        if (i < columns) low[i] = __ldg(at);
        if (i < columns && both) high[i] = __ldg(at + 1);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (i < columns) low[i] = load_before(from + i * step, behind);
        if (i < columns && both) high[i] = load_before(from + i * step + 16, behind);
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      tile[place(col + i * kStep, unit)] = bytes_behind(low[i], high[i], shift);
    }
  }

  // The i-th 16 bytes that the thread writes: where, and what.
  static __device__ __forceinline__ uint4 read(const uint4* tile, int i, int& row, int& col) {
    if constexpr (sizeof(T) == 2) {
      // A lane's four registers are pairs of eight columns side by side: matrix j has every second
      // pair of columns, from the j-th on.
      const int lane = threadIdx.x % 32, half = i % 2 * 32;
      const int unit = threadIdx.x / 32 + i / 2 * (kPackThreads / 32);
      const int line = half + lane % 8 / 2 * 8 + lane / 8 * 2 + lane % 2;
      uint32_t r[4];
      load_transposed(r, tile + place(line, unit));
      row = unit * 8 + lane / 4;
      col = half + lane % 4 * 8;
      return {r[0], r[1], r[2], r[3]};
    } else {
      const int vector = threadIdx.x + i * kPackThreads;
      row = vector / (kCols / 4);
      col = vector % (kCols / 4) * 4;
      const auto* words = reinterpret_cast<const uint32_t*>(tile);
      uint32_t r[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) r[j] = words[place(col + j, row / 4) * 4 + row % 4];
      return {r[0], r[1], r[2], r[3]};
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kPackThreads)
    pack_columns_kernel(const T* __restrict__ source, T* __restrict__ out, PackShape shape,
                        int col_tiles) {
  using Tile = TransposedTile<T>;
  __shared__ uint4 tile[Tile::kCols * Tile::kUnits];
  const int64_t tile_row = int64_t{blockIdx.x / col_tiles} * Tile::kRows;
  const int64_t tile_col = int64_t{blockIdx.x % col_tiles} * Tile::kCols;
  const auto inside = [](int64_t all, int64_t first, int most) {
    return static_cast<int>(min(max(all - first, int64_t{0}), int64_t{most}));
  };
  const int rows = inside(shape.rows, tile_row, Tile::kRows);
  wait_for_predecessor();

  Tile::load(source + tile_row + tile_col * shape.col_stride,
             source + (shape.cols - 1) * shape.col_stride + shape.rows, shape.col_stride, rows,
             inside(shape.cols, tile_col, Tile::kCols), tile);
  __syncthreads();

#pragma unroll
  for (int i = 0; i < Tile::kCount; ++i) {
    int row, col;
    const uint4 vector = Tile::read(tile, i, row, col);
    if (tile_row + row >= shape.out_rows || tile_col + col >= shape.ld) continue;
    T* to = out + (tile_row + row) * shape.ld + tile_col + col;
    *reinterpret_cast<uint4*>(to) = row < rows ? vector : uint4{};
  }
}

// ---- neither, but rows are nearer than columns ----

inline constexpr int kPackTileRows = 64;

// A block transposes 64 rows x 128 bytes.
template <class T>
__global__ void __launch_bounds__(kPackThreads)
    pack_transpose_kernel(const T* __restrict__ source, T* __restrict__ out, PackShape shape,
                          int col_tiles) {
  constexpr int kTileCols = kPackTileBytes / sizeof(T);
  constexpr int kColStep = kPackThreads / kPackTileRows;
  constexpr int kWords = kPackTileBytes / 4;
  constexpr int kVectors = kPackTileBytes / 16;
  // NOTE: one word of padding: writes down a column and 16-byte reads along a row are free of bank
  // conflicts.
  __shared__ uint32_t tile[kPackTileRows][kWords + 1];
  const int64_t tile_row = int64_t{blockIdx.x / col_tiles} * kPackTileRows;
  const int64_t tile_col = int64_t{blockIdx.x % col_tiles} * kTileCols;
  wait_for_predecessor();

  // Source to shared memory: neighbouring threads read neighbouring rows.
  const int row = threadIdx.x % kPackTileRows;
  const int first_col = threadIdx.x / kPackTileRows;
  const T* from = source + (tile_row + row) * shape.row_stride + tile_col * shape.col_stride;
  T values[kTileCols / kColStep];
#pragma unroll
  for (int i = 0; i < kTileCols / kColStep; ++i) {
    const int col = first_col + i * kColStep;
    const bool inside = tile_row + row < shape.rows && tile_col + col < shape.cols;
    values[i] = inside ? from[col * shape.col_stride] : T(0);
  }
#pragma unroll
  for (int i = 0; i < kTileCols / kColStep; ++i) {
    const int col = first_col + i * kColStep;
    if constexpr (sizeof(T) == 8) {
      tile[row][2 * col] = static_cast<uint32_t>(values[i]);
      tile[row][2 * col + 1] = static_cast<uint32_t>(values[i] >> 32);
    } else {
      reinterpret_cast<T*>(tile[row])[col] = values[i];
    }
  }
  __syncthreads();

  // Shared memory to output: neighbouring threads write neighbouring vectors.
#pragma unroll
  for (int i = threadIdx.x; i < kPackTileRows * kVectors; i += kPackThreads) {
    const int out_row = i / kVectors;
    const int word = i % kVectors * 4;
    const int64_t col = tile_col + word * int64_t{4} / int64_t{sizeof(T)};
    if (tile_row + out_row >= shape.out_rows || col >= shape.ld) continue;
    const uint32_t* from_row = tile[out_row] + word;
    const uint4 vector = {from_row[0], from_row[1], from_row[2], from_row[3]};
    *reinterpret_cast<uint4*>(out + (tile_row + out_row) * shape.ld + col) = vector;
  }
}

}  // namespace fusedops
