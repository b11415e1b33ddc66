// One pass over (rows, cols) inputs that writes an elementwise result and sums over the rows: the
// backward of ops with per-column parameters. Deterministic: each block sums its rows in a fixed
// order into a partial row, column_sum_kernel adds the partial rows in order. fp64 sums in fp64,
// every other dtype in fp32 (fp64 across threads), before anything is rounded.
//
// An op is a functor: kInputs, kSums, Columns<kVec> (what is constant along a column), load(col),
// and apply(columns, in, row, col, sums) -> the result of kVec elements, which adds to sums.
#pragma once

#include "csrc/common/device/column_sums.cuh"

namespace fusedops {

inline constexpr int kColumnPassUnroll = 4;

template <int kInputs, int kSums>
struct ColumnPass {
  int64_t rows = 0, cols = 0;
  const void* in[kInputs] = {};
  int64_t strides[kInputs] = {};  // elements between rows
  void* out = nullptr;            // (rows, cols) contiguous, or null
  void* partial[kSums] = {};      // (row_blocks, cols) of Compute, or null
  ColumnGrid grid{};
};

template <class T, int kVec, class Op>
__global__ void __launch_bounds__(kColumnThreads)
    column_pass_kernel(const __grid_constant__ ColumnPass<Op::kInputs, Op::kSums> p, const Op op) {
  using C = Compute<T>;
  using V = Vec<T, kVec>;
  __shared__ C shared[kColumnThreads * kVec];
  wait_for_predecessor();
  const int threads_x = p.grid.threads_x;
  const int tx = threadIdx.x % threads_x, ty = threadIdx.x / threads_x;
  const int threads_y = kColumnThreads / threads_x;
  const int64_t row_block = blockIdx.x / p.grid.col_blocks;
  const int64_t col_block = blockIdx.x % p.grid.col_blocks;
  const int64_t col = (col_block * threads_x + tx) * kVec;
  const int64_t row_begin = row_block * p.grid.rows_per_block;
  const int64_t row_end = min(row_begin + p.grid.rows_per_block, p.rows);

  C sums[Op::kSums][kVec] = {};
  if (col < p.cols) {
    const auto columns = op.template load<kVec>(col);
    const int64_t step = int64_t{threads_y} * kColumnPassUnroll;
    for (int64_t row = row_begin + ty; row < row_end; row += step) {
      V in[kColumnPassUnroll][Op::kInputs];
#pragma unroll
      for (int u = 0; u < kColumnPassUnroll; ++u) {
        const int64_t r = row + int64_t{u} * threads_y;
        if (r >= row_end) break;
#pragma unroll
        for (int k = 0; k < Op::kInputs; ++k) {
          const T* data = static_cast<const T*>(p.in[k]) + r * p.strides[k] + col;
          in[u][k] = *reinterpret_cast<const V*>(data);
        }
      }
#pragma unroll
      for (int u = 0; u < kColumnPassUnroll; ++u) {
        const int64_t r = row + int64_t{u} * threads_y;
        if (r >= row_end) break;
        const V v = op.apply(columns, in[u], r, col, sums);
        if (p.out) *reinterpret_cast<V*>(static_cast<T*>(p.out) + r * p.cols + col) = v;
      }
    }
  }

  // Column sums of the block: rows of threads in order
  const int width = threads_x * kVec;
#pragma unroll
  for (int s = 0; s < Op::kSums; ++s) {
    if (p.partial[s] == nullptr) continue;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kVec; ++i) shared[ty * width + tx * kVec + i] = sums[s][i];
    __syncthreads();
    for (int c = threadIdx.x; c < width; c += kColumnThreads) {
      const int64_t column = col_block * width + c;
      if (column >= p.cols) break;
      double total = 0;  // NOTE: a chain of fp32 sums would be less exact than torch's tree
      for (int y = 0; y < threads_y; ++y) total += shared[y * width + c];
      static_cast<C*>(p.partial[s])[row_block * p.cols + column] = static_cast<C>(total);
    }
  }
}

// 16-byte accesses where every row allows them.
template <class T, int kInputs, int kSums>
bool vectorizable(const ColumnPass<kInputs, kSums>& p) {
  constexpr int64_t kVec = 16 / sizeof(T);
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  bool fits = p.cols % kVec == 0 && aligned(p.out);
  for (int k = 0; k < kInputs; ++k) fits = fits && aligned(p.in[k]) && p.strides[k] % kVec == 0;
  return fits;
}

// sums: where the column sums go, (cols,) of T or null. Needs p.grid and p.partial.
template <class T, class Op>
cudaError_t launch_column_pass(const ColumnPass<Op::kInputs, Op::kSums>& p, const Op& op,
                               void* const (&sums)[Op::kSums], cudaStream_t stream, bool overlap) {
  const dim3 grid(p.grid.row_blocks * p.grid.col_blocks);
  const auto kernel =
      vectorizable<T>(p) ? column_pass_kernel<T, 16 / sizeof(T), Op> : column_pass_kernel<T, 1, Op>;
  cudaError_t status = launch_kernel(kernel, grid, dim3(kColumnThreads), 0, stream, overlap, p, op);
  for (int s = 0; s < Op::kSums; ++s) {
    if (status != cudaSuccess || sums[s] == nullptr) continue;
    status = launch_kernel(column_sum_kernel<Compute<T>, T>, dim3(ceil_div(p.cols, kColumnSumX)),
                           dim3(kColumnSumX, kColumnSumY), 0, stream, overlap,
                           static_cast<const Compute<T>*>(p.partial[s]), static_cast<T*>(sums[s]),
                           p.grid.row_blocks, p.cols);
  }
  return status;
}

}  // namespace fusedops
