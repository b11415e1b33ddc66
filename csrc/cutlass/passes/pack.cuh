// Copies a strided matrix into an aligned, zero-padded, row-major buffer, and such a buffer into a
// dense matrix, 16 bytes per store. Rows that are contiguous in the source are copied straight; a
// source that is contiguous along its rows index is transposed through shared memory, so that both
// sides are coalesced.
#pragma once

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

// ---- source columns are (nearly) contiguous ----

inline constexpr int kPackTileRows = 64;
inline constexpr int kPackTileBytes = 128;  // of an output row

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
