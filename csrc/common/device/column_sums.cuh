// Sums over the rows of a (rows, cols) matrix, for kernels that pass over it for something else
// too. Deterministic: each block sums its rows in a fixed order into a partial row,
// column_sum_kernel adds the partial rows in order.
#pragma once

#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/vec.cuh"

namespace fusedops {

inline constexpr int kColumnThreads = 256;
inline constexpr int kColumnUnroll = 4;

// How the (rows, cols) matrix is cut into blocks: host arithmetic shared by the launcher and the
// kernel.
struct ColumnGrid {
  int threads_x;           // threads along the columns of a block
  int64_t rows_per_block;  // rows that one block walks
  int64_t row_blocks;      // partial rows per column
  int64_t col_blocks;
};

inline ColumnGrid column_grid(int64_t rows, int64_t cols, int vec, int sm_count) {
  ColumnGrid grid{};
  grid.threads_x = 1;
  while (grid.threads_x < 32 && int64_t{grid.threads_x} * vec < cols) grid.threads_x *= 2;
  grid.col_blocks = ceil_div(cols, int64_t{grid.threads_x} * vec);
  const int64_t rows_per_step = kColumnThreads / grid.threads_x * kColumnUnroll;
  const int64_t steps = ceil_div(rows, rows_per_step);
  const int64_t wanted_blocks = ceil_div(int64_t{sm_count} * 8, grid.col_blocks);
  const int64_t steps_per_block = ceil_div(steps, wanted_blocks < steps ? wanted_blocks : steps);
  grid.rows_per_block = steps_per_block * rows_per_step;
  grid.row_blocks = ceil_div(rows, grid.rows_per_block);
  return grid;
}

// Adds the sums of the block's threads over its rows of threads, in order, into one row of partial
// sums. shared: kColumnThreads * kVec elements.
template <int kVec, class C>
__device__ __forceinline__ void block_column_sums(const C (&sum)[kVec], C* shared,
                                                  C* partial_row,  // (cols,)
                                                  int64_t cols, int threads_x) {
  const int tx = threadIdx.x % threads_x;
  const int ty = threadIdx.x / threads_x;
  const int threads_y = kColumnThreads / threads_x;
  const int width = threads_x * kVec;
#pragma unroll
  for (int i = 0; i < kVec; ++i) shared[ty * width + tx * kVec + i] = sum[i];
  __syncthreads();
  for (int c = threadIdx.x; c < width; c += kColumnThreads) {
    const int64_t column = int64_t{blockIdx.x} * width + c;
    if (column >= cols) break;
    double total = 0;  // NOTE: a chain of fp32 sums would be less exact than torch's tree
    for (int y = 0; y < threads_y; ++y) total += shared[y * width + c];
    partial_row[column] = static_cast<C>(total);
  }
}

inline constexpr int kColumnSumX = 32, kColumnSumY = 16;

// out[c] = sum over r of partial[r, c], rows in a fixed order.
template <class C, class Out>
__global__ void __launch_bounds__(kColumnSumX* kColumnSumY)
    column_sum_kernel(const C* partial, Out* out, int64_t rows, int64_t cols) {
  __shared__ double shared[kColumnSumY][kColumnSumX];
  wait_for_predecessor();
  const int64_t col = int64_t{blockIdx.x} * kColumnSumX + threadIdx.x;
  double sum = 0;
  if (col < cols) {
#pragma unroll 8
    for (int64_t row = threadIdx.y; row < rows; row += kColumnSumY)
      sum += partial[row * cols + col];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && col < cols) {
    for (int y = 1; y < kColumnSumY; ++y) sum += shared[y][threadIdx.x];
    out[col] = from_compute<Out>(static_cast<C>(sum));
  }
}

}  // namespace fusedops
