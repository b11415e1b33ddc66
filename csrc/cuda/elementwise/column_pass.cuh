// One pass over (rows, cols) inputs that writes an elementwise result and sums over the rows: the
// backward of ops with per-column parameters. Deterministic: each block sums its rows in a fixed
// order into a partial row, column_sum_kernel adds the partial rows in order. fp64 sums in fp64,
// every other dtype in fp32 (fp64 across threads), before anything is rounded.
//
// Dense rows that no vector divides are folded: `fold` of them, side by side, are one row of whole
// vectors. The rows that are left fill a part of the last one.
//
// An op is a functor: kInputs, kSums, Columns<kVec> (what is constant along a column), load(col,
// period) where columns repeat after `period`, and apply(columns, in, row, col, sums) -> the result
// of kVec elements, which adds to sums; rows and columns are those of the fold.
#pragma once

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "csrc/common/device/column_sums.cuh"

namespace fusedops {

inline constexpr int kColumnPassUnroll = 4;

template <int kInputs, int kSums>
struct ColumnPass {
  int64_t rows = 0, cols = 0;    // of the fold
  int64_t period = 0, left = 0;  // columns, and elements of a last row that is not whole
  const void* in[kInputs] = {};
  int64_t strides[kInputs] = {};  // elements between rows
  void* out = nullptr;            // (rows, cols) contiguous, or null
  void* partial[kSums] = {};      // (row_blocks, cols or period) of Compute, or null
  ColumnGrid grid{};

  // A block that has all columns of a fold adds those that are one.
  __host__ __device__ bool adds_fold() const { return grid.col_blocks == 1; }
  __host__ __device__ int64_t partial_cols() const { return adds_fold() ? period : cols; }
};

// The part of a last row that is not whole, element by element: elements ty, ty + threads_y, ...
template <class T, int kVec, class Op>
__device__ __forceinline__ void column_pass_rest(const ColumnPass<Op::kInputs, Op::kSums>& p,
                                                 const Op& op, int64_t col, int ty, int threads_y,
                                                 Compute<T> (&sums)[Op::kSums][kVec]) {
#pragma unroll 1
  for (int i = ty; i < kVec; i += threads_y) {
    if (col + i >= p.left) break;
    Vec<T, 1> in[Op::kInputs];
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) {
      in[k].value[0] = static_cast<const T*>(p.in[k])[p.rows * p.strides[k] + col + i];
    }
    Compute<T> part[Op::kSums][1] = {};
    const Vec<T, 1> v = op.apply(op.template load<1>(col + i, p.period), in, p.rows, col + i, part);
    if (p.out) static_cast<T*>(p.out)[p.rows * p.cols + col + i] = v.value[0];
#pragma unroll
    for (int s = 0; s < Op::kSums; ++s) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) sums[s][j] += j == i ? part[s][0] : 0;
    }
  }
}

// Adds up a block's columns, `first` and following, from its threads' sums in shared memory, a row
// of `width` for each row of threads: as many threads as there are share a column, each adds every
// so many of its values in order, then halves of them meet.
// NOTE: in fp64, since a chain of fp32 sums would be less exact than torch's tree.
template <class C, class Pass>
__device__ __forceinline__ void add_block_columns(const Pass& p, const C* shared, double* totals,
                                                  int64_t first, int width, C* partial) {
  const int64_t left = p.partial_cols() - first;
  const int count = left < width ? static_cast<int>(left) : width;
  const int used = p.adds_fold() ? static_cast<int>(p.cols) : width;  // values of a row
  const int values = kColumnThreads / p.grid.threads_x * used;
  int columns = 1;  // at a time
  while (columns < kColumnThreads && columns < count) columns *= 2;
  const int sharers = kColumnThreads / columns, share = static_cast<int>(threadIdx.x) / columns;
  const int step = p.adds_fold() ? count : width;  // between values of a column
  for (int base = 0; base < count; base += columns) {
    const int c = base + static_cast<int>(threadIdx.x) % columns;
    double total = 0;
    if (c < count) {
      for (int at = c + share * step; at < values; at += sharers * step) {
        const int row = at / used;
        total += shared[row * width + at - row * used];
      }
    }
    for (int half = sharers / 2; half > 0; half /= 2) {
      __syncthreads();
      if (share >= half && share < 2 * half) totals[threadIdx.x] = total;
      __syncthreads();
      if (share < half) total += totals[threadIdx.x + half * columns];
    }
    if (share == 0 && c < count) partial[first + c] = static_cast<C>(total);
  }
}

// A vector on its way, as words: 16-bit elements would take a register each from the load on.
template <class V>
struct alignas(sizeof(V)) HeldVec {
  using Word = std::conditional_t<sizeof(V) % 4 == 0, uint32_t, uint16_t>;
  Word word[sizeof(V) / sizeof(Word)];

  __device__ __forceinline__ void hold() {
    if constexpr (sizeof(Word) == 4) {
#pragma unroll
      for (Word& w : word) asm volatile("" : "+r"(w));
    }
  }
};

template <class T, int kVec, class Op>
__global__ void __launch_bounds__(kColumnThreads)
    column_pass_kernel(const __grid_constant__ ColumnPass<Op::kInputs, Op::kSums> p, const Op op) {
  using C = Compute<T>;
  using V = Vec<T, kVec>;
  __shared__ C shared[kColumnThreads * kVec];
  __shared__ double totals[kColumnThreads];
  wait_for_predecessor();
  const int threads_x = p.grid.threads_x;
  const int tx = threadIdx.x % threads_x, ty = threadIdx.x / threads_x;
  const int threads_y = kColumnThreads / threads_x;
  const int64_t row_block = blockIdx.x / p.grid.col_blocks;
  const int64_t col_block = blockIdx.x % p.grid.col_blocks;
  const int64_t col = (col_block * threads_x + tx) * kVec;
  const int64_t row_begin = row_block * p.grid.rows_per_block;
  const int64_t row_end = min(row_begin + p.grid.rows_per_block, p.rows);
  const bool has_rows = ty < threads_y;  // threads beyond a whole number of rows have none

  C sums[Op::kSums][kVec] = {};
  if (has_rows && col < p.cols) {
    const auto columns = op.template load<kVec>(col, p.period);
    const int64_t step = int64_t{threads_y} * kColumnPassUnroll;
    for (int64_t row = row_begin + ty; row < row_end; row += step) {
      HeldVec<V> words[kColumnPassUnroll][Op::kInputs];
#pragma unroll
      for (int u = 0; u < kColumnPassUnroll; ++u) {
        const int64_t r = row + int64_t{u} * threads_y;
        if (r >= row_end) break;
#pragma unroll
        for (int k = 0; k < Op::kInputs; ++k) {
          const T* data = static_cast<const T*>(p.in[k]) + r * p.strides[k] + col;
          words[u][k] = *reinterpret_cast<const HeldVec<V>*>(data);
        }
      }
#pragma unroll
      for (int u = 0; u < kColumnPassUnroll; ++u) {
        const int64_t r = row + int64_t{u} * threads_y;
        if (r >= row_end) break;
        V in[Op::kInputs];
#pragma unroll
        for (int k = 0; k < Op::kInputs; ++k) {
          words[u][k].hold();
          in[k] = __builtin_bit_cast(V, words[u][k]);
        }
        const V v = op.apply(columns, in, r, col, sums);
        if (p.out) *reinterpret_cast<V*>(static_cast<T*>(p.out) + r * p.cols + col) = v;
      }
    }
    if (p.left > 0 && row_block == p.grid.row_blocks - 1) {
      column_pass_rest<T, kVec>(p, op, col, ty, threads_y, sums);
    }
  }

  // Column sums of the block: rows of threads in order
  const int width = threads_x * kVec;
#pragma unroll
  for (int s = 0; s < Op::kSums; ++s) {
    if (p.partial[s] == nullptr) continue;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if (has_rows) shared[ty * width + tx * kVec + i] = sums[s][i];
    }
    __syncthreads();
    add_block_columns(p, shared, totals, col_block * width, width,
                      static_cast<C*>(p.partial[s]) + row_block * p.partial_cols());
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

// Threads side by side in a block: a whole fold's where it has them, else what leaves the fewest
// threads idle.
inline int folded_threads(int64_t vectors) {
  if (vectors <= kColumnThreads) return static_cast<int>(vectors);
  constexpr int kLeast = 32;
  const auto busy = [&](int threads) {  // of a million
    const int64_t asked = ceil_div(vectors, int64_t{threads}) * threads;
    return vectors * 1'000'000 / asked * (kColumnThreads / threads * threads) / kColumnThreads;
  };
  int best = kLeast;
  for (int threads = kLeast + 1; threads <= kColumnThreads; ++threads) {
    if (busy(threads) >= busy(best)) best = threads;
  }
  return best;
}

// The grid of a folded pass.
inline ColumnGrid folded_grid(int64_t rows, int64_t cols, int vec, int sm_count) {
  ColumnGrid grid{};
  grid.threads_x = folded_threads(cols / vec);
  grid.col_blocks = ceil_div(cols, int64_t{grid.threads_x} * vec);
  const int64_t at_once = kColumnThreads / grid.threads_x, step = at_once * kColumnPassUnroll;
  const int64_t wanted = ceil_div(int64_t{sm_count} * 8, grid.col_blocks);
  // NOTE: rows that are few are spread over more blocks than rows on their way would fill.
  const bool few = ceil_div(rows, step) * grid.col_blocks < sm_count;
  grid.rows_per_block = round_up(ceil_div(rows, wanted), few ? at_once : step);
  grid.row_blocks = ceil_div(rows, grid.rows_per_block);
  return grid;
}

// Folds dense rows that no vector divides, where there are many. Asks for the pointers, and for
// rows and strides of single rows.
template <class T, int kInputs, int kSums>
bool fold_rows(ColumnPass<kInputs, kSums>& p, int sm_count) {
  constexpr int64_t kVec = 16 / sizeof(T), kLeastRows = 64;
  const int64_t fold = kVec / std::gcd(p.cols, kVec);
  if (fold == 1 || p.rows < kLeastRows * fold || p.cols > INT32_MAX / (2 * kVec)) return false;
  ColumnPass<kInputs, kSums> folded = p;
  for (int k = 0; k < kInputs; ++k) {
    if (p.strides[k] != p.cols) return false;
    folded.strides[k] = p.cols * fold;
  }
  folded.cols = p.cols * fold;
  folded.rows = p.rows / fold;
  folded.left = p.rows % fold * p.cols;
  if (!vectorizable<T>(folded)) return false;
  folded.grid = folded_grid(folded.rows, folded.cols, kVec, sm_count);
  p = folded;
  return true;
}

inline constexpr int kManySumX = 8, kManySumY = 64;
inline constexpr int64_t kManyPartials = 256;  // rows from which few columns take more threads

// column_sum_kernel for many rows: a sector of each at a time, threads of a column meet in halves.
template <class C, class Out>
__global__ void __launch_bounds__(kManySumX* kManySumY)
    many_sum_kernel(const C* partial, Out* out, int64_t rows, int64_t cols) {
  __shared__ double shared[kManySumY / 2][kManySumX];
  wait_for_predecessor();
  const int y = static_cast<int>(threadIdx.y);
  const int64_t col = int64_t{blockIdx.x} * kManySumX + threadIdx.x;
  double sum = 0;
  if (col < cols) {
#pragma unroll 8
    for (int64_t row = y; row < rows; row += kManySumY) sum += partial[row * cols + col];
  }
  for (int half = kManySumY / 2; half > 0; half /= 2) {
    if (y >= half && y < 2 * half) shared[y - half][threadIdx.x] = sum;
    __syncthreads();
    if (y < half) sum += shared[y][threadIdx.x];
    __syncthreads();
  }
  if (y == 0 && col < cols) out[col] = from_compute<Out>(static_cast<C>(sum));
}

template <class C, class Out>
cudaError_t launch_column_sum(const void* partial, void* out, int64_t rows, int64_t cols,
                              cudaStream_t stream, bool overlap) {
  const bool many = rows >= kManyPartials;
  const dim3 threads = many ? dim3(kManySumX, kManySumY) : dim3(kColumnSumX, kColumnSumY);
  return launch_kernel(many ? many_sum_kernel<C, Out> : column_sum_kernel<C, Out>,
                       dim3(ceil_div(cols, int64_t{threads.x})), threads, 0, stream, overlap,
                       static_cast<const C*>(partial), static_cast<Out*>(out), rows, cols);
}

// sums: where the column sums go, (period,) of T or null. Needs p.grid and p.partial.
template <class T, class Op>
cudaError_t launch_column_pass(const ColumnPass<Op::kInputs, Op::kSums>& p, const Op& op,
                               void* const (&sums)[Op::kSums], cudaStream_t stream, bool overlap) {
  const dim3 grid(p.grid.row_blocks * p.grid.col_blocks);
  const auto kernel =
      vectorizable<T>(p) ? column_pass_kernel<T, 16 / sizeof(T), Op> : column_pass_kernel<T, 1, Op>;
  cudaError_t status = launch_kernel(kernel, grid, dim3(kColumnThreads), 0, stream, overlap, p, op);
  for (int s = 0; s < Op::kSums; ++s) {
    if (status != cudaSuccess || sums[s] == nullptr) continue;
    status = launch_column_sum<Compute<T>, T>(p.partial[s], sums[s],
                                              p.grid.row_blocks * (p.partial_cols() / p.period),
                                              p.period, stream, overlap);
  }
  return status;
}

}  // namespace fusedops
