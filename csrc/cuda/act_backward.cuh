// dz = dy * act'(saved) and the bias gradient sum_rows(dz) in one pass over memory.
// The bias gradient is deterministic: each block sums its rows in a fixed order into a partial row,
// a second kernel adds the partial rows in order. fp64 sums in fp64, every other dtype in fp32,
// from dz before it is rounded.
#pragma once

#include "common/pdl.cuh"
#include "common/vec.cuh"
#include "cuda/activation_gradient.cuh"

namespace fusedops {

struct ActBackwardShape {
  int64_t rows, cols;
  int64_t dy_stride, saved_stride;  // elements between rows; dz is contiguous
};

inline constexpr int kActBackwardThreads = 256;
inline constexpr int kActBackwardUnroll = 4;

// How the (rows, cols) matrix is cut into blocks: host arithmetic shared by the launcher and the
// kernel.
struct ActBackwardGrid {
  int threads_x;           // threads along the columns of a block
  int64_t rows_per_block;  // rows that one block walks
  int64_t row_blocks;      // partial rows per column
  int64_t col_blocks;
};

inline ActBackwardGrid act_backward_grid(int64_t rows, int64_t cols, int vec, int sm_count) {
  ActBackwardGrid grid{};
  grid.threads_x = 1;
  while (grid.threads_x < 32 && int64_t{grid.threads_x} * vec < cols) grid.threads_x *= 2;
  grid.col_blocks = ceil_div(cols, int64_t{grid.threads_x} * vec);
  const int64_t rows_per_step = kActBackwardThreads / grid.threads_x * kActBackwardUnroll;
  const int64_t steps = ceil_div(rows, rows_per_step);
  const int64_t wanted_blocks = ceil_div(int64_t{sm_count} * 8, grid.col_blocks);
  const int64_t steps_per_block = ceil_div(steps, wanted_blocks < steps ? wanted_blocks : steps);
  grid.rows_per_block = steps_per_block * rows_per_step;
  grid.row_blocks = ceil_div(rows, grid.rows_per_block);
  return grid;
}

// The rows that one thread has in flight, and what becomes of them.
template <class T, int kVec, bool kWriteDz, Activation kActivation>
struct ActBackwardRows {
  using C = Compute<T>;
  using V = Vec<T, kVec>;
  static constexpr bool kReadSaved = saved_for_backward(kActivation) != Saved::kNothing;
  V dy[kActBackwardUnroll], saved[kActBackwardUnroll];

  __device__ __forceinline__ void load(int u, const T* dy_row, const T* saved_row) {
    dy[u] = *reinterpret_cast<const V*>(dy_row);
    if constexpr (kReadSaved) saved[u] = *reinterpret_cast<const V*>(saved_row);
  }

  __device__ __forceinline__ void finish(int u, T* dz_row, C (&sum)[kVec]) const {
    V out;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      C z = to_compute(dy[u].value[i]);
      if constexpr (kReadSaved) {
        z = activation_gradient_as<kActivation, kAccuracyOf<T>>(z, to_compute(saved[u].value[i]));
      }
      sum[i] += z;
      out.value[i] = from_compute<T>(z);
    }
    if constexpr (kWriteDz) *reinterpret_cast<V*>(dz_row) = out;
  }
};

// Adds the sums of the block's threads over its rows of threads, in order, into one row of partial
// sums. shared: kActBackwardThreads * kVec elements.
template <int kVec, class C>
__device__ __forceinline__ void block_column_sums(const C (&sum)[kVec], C* shared,
                                                  C* partial_row,  // (cols,)
                                                  int64_t cols, int threads_x) {
  const int tx = threadIdx.x % threads_x;
  const int ty = threadIdx.x / threads_x;
  const int threads_y = kActBackwardThreads / threads_x;
  const int width = threads_x * kVec;
#pragma unroll
  for (int i = 0; i < kVec; ++i) shared[ty * width + tx * kVec + i] = sum[i];
  __syncthreads();
  for (int c = threadIdx.x; c < width; c += kActBackwardThreads) {
    const int64_t column = int64_t{blockIdx.x} * width + c;
    if (column >= cols) break;
    double total = 0;  // NOTE: a chain of fp32 sums would be less exact than torch's tree
    for (int y = 0; y < threads_y; ++y) total += shared[y * width + c];
    partial_row[column] = static_cast<C>(total);
  }
}

// kWriteDz = false: only the column sums (activation none). partial: (row_blocks, cols) or null
// when no bias gradient.
template <class T, int kVec, bool kWriteDz, Activation kActivation>
__global__ void __launch_bounds__(kActBackwardThreads)
    act_backward_kernel(const T* dy, const T* saved, T* dz, Compute<T>* partial,
                        ActBackwardShape shape, int64_t rows_per_block, int threads_x) {
  using C = Compute<T>;
  __shared__ C shared[kActBackwardThreads * kVec];
  wait_for_predecessor();
  const int tx = threadIdx.x % threads_x;
  const int ty = threadIdx.x / threads_x;
  const int threads_y = kActBackwardThreads / threads_x;
  const int64_t col = (int64_t{blockIdx.x} * threads_x + tx) * kVec;
  const int64_t row_begin = int64_t{blockIdx.y} * rows_per_block;
  const int64_t row_end =
      row_begin + rows_per_block < shape.rows ? row_begin + rows_per_block : shape.rows;

  C sum[kVec] = {};
  if (col < shape.cols) {
    const int64_t step = int64_t{threads_y} * kActBackwardUnroll;
    ActBackwardRows<T, kVec, kWriteDz, kActivation> rows;
    int64_t row = row_begin + ty;
    for (; row + step - threads_y < row_end; row += step) {
#pragma unroll
      for (int u = 0; u < kActBackwardUnroll; ++u) {
        const int64_t r = row + int64_t{u} * threads_y;
        rows.load(u, dy + r * shape.dy_stride + col, saved + r * shape.saved_stride + col);
      }
#pragma unroll
      for (int u = 0; u < kActBackwardUnroll; ++u) {
        rows.finish(u, dz + (row + int64_t{u} * threads_y) * shape.cols + col, sum);
      }
    }
    for (; row < row_end; row += threads_y) {
      rows.load(0, dy + row * shape.dy_stride + col, saved + row * shape.saved_stride + col);
      rows.finish(0, dz + row * shape.cols + col, sum);
    }
  }
  if (partial == nullptr) return;

  block_column_sums(sum, shared, partial + blockIdx.y * shape.cols, shape.cols, threads_x);
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
