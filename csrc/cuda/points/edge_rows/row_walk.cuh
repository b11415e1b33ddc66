// A walk over rows (R, C) in which a thread keeps 8 channels: what is constant along a channel
// stays in registers, and sums over rows are partial sums of blocks, added in a fixed order.
#pragma once

#include "csrc/common/device/vec.cuh"
#include "csrc/cuda/points/block_sums.cuh"

namespace fusedops {

inline constexpr int kRowThreads = 256;
inline constexpr int kRowVec = 8;     // channels of a thread: 16 bytes
inline constexpr int kRowUnroll = 4;  // rows that a thread has at least, where there are enough
inline constexpr int kRowBlocks = 3;  // of a multiprocessor

// How rows and channels are dealt out to threads.
struct RowGrid {
  int threads_x;   // along the channels of a block
  int threads_y;   // along its rows
  int col_blocks;  // blocks along the channels
  int row_blocks;
};

// items: rows, or groups of them, of which a thread has one at a time; `split` threads share one.
inline RowGrid row_grid(int64_t items, int64_t channels, int split, int sm_count) {
  RowGrid grid{};
  const int64_t chunks = channels / kRowVec;
  grid.col_blocks = static_cast<int>(ceil_div(chunks, int64_t{32}));
  grid.threads_x = static_cast<int>(ceil_div(chunks, int64_t{grid.col_blocks}));
  grid.threads_y = kRowThreads / grid.threads_x / split * split;
  const int64_t steps = ceil_div(items, int64_t{grid.threads_y / split});
  const int64_t wanted = ceil_div(int64_t{sm_count} * kRowBlocks, int64_t{grid.col_blocks});
  grid.row_blocks = static_cast<int>(wanted < steps ? wanted : steps);
  return grid;
}

// Threads that share a group of k rows: more where a thread would have few groups, as one more or
// less of them is seen then.
inline int row_split(int64_t groups, int64_t k, int64_t channels, int sm_count) {
  constexpr int kFewGroups = 8;
  const int threads_y = row_grid(groups, channels, 1, sm_count).threads_y;
  const int64_t threads = int64_t{sm_count} * kRowBlocks * kRowThreads;
  int split = 1;
  while (2 * split <= threads_y && 2 * split * kRowUnroll <= k &&
         groups * (channels / kRowVec) * split < kFewGroups * threads)
    split *= 2;
  return split;
}

// Where a thread stands.
struct RowPlace {
  int tx, ty, row_block, col;  // col: the first of its channels
  int first_col;               // of the block
  bool active;

  __device__ __forceinline__ RowPlace(const RowGrid& grid, int channels) {
    tx = static_cast<int>(threadIdx.x) % grid.threads_x;
    ty = static_cast<int>(threadIdx.x) / grid.threads_x;
    row_block = static_cast<int>(blockIdx.x) / grid.col_blocks;
    first_col = static_cast<int>(blockIdx.x) % grid.col_blocks * grid.threads_x * kRowVec;
    col = first_col + tx * kRowVec;
    active = ty < grid.threads_y && col < channels;
  }
};

// Row k of a group, where a walk over the rows of groups is.
struct RowOfGroup {
  int64_t group;
  int k;

  // Row u of those from here on that are `split` apart, or -1 where the group has no such row.
  __device__ __forceinline__ int64_t row(int u, int split, int size, int64_t groups) const {
    const int at = k + u * split;
    return group < groups && at < size ? group * size + at : -1;
  }
  // Beyond a group's end comes row `first` of the group that is `step` further.
  __device__ __forceinline__ void advance(int rows, int first, int size, int64_t step) {
    k += rows;
    if (k < size) return;
    k = first;
    group += step;
  }
};

template <class T>
using RowVec = Vec<T, kRowVec>;

template <class T>
__device__ __forceinline__ RowVec<T> load_row(const T* from, int64_t row, int channels, int col) {
  return *reinterpret_cast<const RowVec<T>*>(from + row * channels + col);
}

template <class T>
__device__ __forceinline__ void store_row(T* to, int64_t row, int channels, int col,
                                          const float (&value)[kRowVec]) {
  RowVec<T> out;
#pragma unroll
  for (int i = 0; i < kRowVec; ++i) out.value[i] = from_compute<T>(value[i]);
  *reinterpret_cast<RowVec<T>*>(to + row * channels + col) = out;
}

// Eight values of a vector of channels, which is 16 bytes aligned.
__device__ __forceinline__ void load_channels(const float* from, int col, float (&to)[kRowVec]) {
#pragma unroll
  for (int i = 0; i < kRowVec; i += 4) {
    const auto part = *reinterpret_cast<const Vec<float, 4>*>(from + col + i);
#pragma unroll
    for (int k = 0; k < 4; ++k) to[i + k] = part.value[k];
  }
}

// ---- norm and activation ----

enum RowStatistic { kRowMean, kRowRstd, kRowScale, kRowShift, kRowCount, kRowStatistics };

// z = (y - mean) scale + shift of a thread's channels.
struct RowNorm {
  float mean[kRowVec], scale[kRowVec], shift[kRowVec];

  __device__ __forceinline__ RowNorm(const float* stats, int channels, int col) {
    load_channels(stats + kRowMean * channels, col, mean);
    load_channels(stats + kRowScale * channels, col, scale);
    load_channels(stats + kRowShift * channels, col, shift);
  }
  __device__ __forceinline__ float z(float y, int i) const {
    return (y - mean[i]) * scale[i] + shift[i];
  }
};

// NOTE: a slope of 0 times an infinity would be a NaN.
__device__ __forceinline__ float row_activation(float z, float slope) {
  return z > 0 || z != z ? z : slope == 0 ? 0.f : slope * z;
}

__device__ __forceinline__ float row_gradient(float dout, float z, float slope) {
  return z > 0 || z != z ? dout : slope == 0 ? 0.f : slope * dout;
}

// ---- sums ----

struct RowSums {
  float* partial;  // (row_blocks, count, channels)
  float* sums;     // (count, channels)
  int row_blocks, values;
};

// Adds what the threads of a block have for their channels and stores it as row `which` of the
// block's partial sums. shared: kRowThreads * kRowVec floats.
__device__ __forceinline__ void store_block_sum(const RowGrid& grid, const RowPlace& at,
                                                int channels, const float (&value)[kRowVec],
                                                float* shared, float* to) {
  const int width = grid.threads_x * kRowVec;
  __syncthreads();
  if (at.ty < grid.threads_y) {
#pragma unroll
    for (int i = 0; i < kRowVec; ++i) shared[at.ty * width + at.tx * kRowVec + i] = value[i];
  }
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < width; c += kRowThreads) {
    if (at.first_col + c >= channels) break;
    float total = 0;
    for (int y = 0; y < grid.threads_y; ++y) total += shared[y * width + c];
    to[at.first_col + c] = total;
  }
}

static __global__ void __launch_bounds__(kJoinThreads)
    edge_rows_finish_kernel(const __grid_constant__ RowSums p) {
  __shared__ JoinStage stage;
  const int value = static_cast<int>(blockIdx.x * kJoinedChannels + threadIdx.x);
  double own = 0;
  const auto load = [&](int b) { return p.partial[static_cast<int64_t>(b) * p.values + value]; };
  for_blocks(p.row_blocks, load, [&](float block) { own += block; });
  const double total = add_slices(stage, own);
  if (threadIdx.y == 0) p.sums[value] = static_cast<float>(total);
}

}  // namespace fusedops
