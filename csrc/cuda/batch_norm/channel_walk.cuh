// A walk over the rows of (rows, channels) matrices in which a thread keeps its channels: what is
// constant along a channel stays in registers, and sums over rows need no atomics. Blocks take
// groups of rows by turns, so that all are at about one place of the matrix: a pass that goes back
// finds in L2 what the one before it, or a convolution, touched last. Threads of a block read
// consecutive chunks of 16 bytes, whatever the channels.
#pragma once

#include <type_traits>

#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/common/int_math.h"

namespace fusedops {

inline constexpr int kWalkThreads = 256;
inline constexpr int kJoinUnroll = 8;  // partial sums that a lane loads at once

// How the rows are cut into blocks.
struct WalkGrid {
  int threads_x;   // threads along the channels of a block
  int threads_y;   // threads along its rows
  int turns;       // of each block; in the last one some have less or nothing
  int64_t group;   // rows that a block takes at a turn
  int64_t before;  // of a block in all turns but the last
  int64_t row_blocks;
  int64_t col_blocks;
  bool back;  // the last turn comes first

  // Blocks of so many rows: what they have at all turns.
  void take(int64_t rows, int64_t of_group, int64_t blocks) {
    group = of_group, row_blocks = blocks;
    turns = static_cast<int>(ceil_div(rows, group * row_blocks));
    before = (turns - 1) * group;
  }
  __device__ __forceinline__ int64_t rows_of(int64_t block, int64_t rows) const {
    const int64_t left = rows - before * row_blocks - block * group;
    return before + max(int64_t{0}, min(left, group));
  }
};

// unroll: rows that a thread loads at once. One wave: blocks that begin anew would load what is
// constant along their channels anew.
inline WalkGrid walk_grid(int64_t rows, int64_t channels, int vec, int unroll, int sm_count,
                          int blocks_per_sm, bool back = false) {
  WalkGrid grid{};
  const int64_t chunks = ceil_div(channels, int64_t{vec});
  grid.col_blocks = ceil_div(chunks, int64_t{32});
  grid.threads_x = static_cast<int>(ceil_div(chunks, grid.col_blocks));
  grid.threads_y = kWalkThreads / grid.threads_x;
  const int64_t group = int64_t{grid.threads_y} * unroll, groups = ceil_div(rows, group);
  const int64_t wanted = ceil_div(int64_t{sm_count} * blocks_per_sm, grid.col_blocks);
  grid.take(rows, group, ceil_div(groups, ceil_div(groups, wanted < groups ? wanted : groups)));
  grid.back = back;
  return grid;
}

// Where a thread stands.
struct WalkPlace {
  int tx, ty;
  int64_t row_block, col;  // col: the first of its channels
  int64_t row, end;        // the thread's first row in the first turn, and where all rows end
  bool active;

  template <int kVec>
  __device__ __forceinline__ static WalkPlace of(const WalkGrid& grid, int64_t rows,
                                                 int64_t channels) {
    WalkPlace at{};
    at.tx = threadIdx.x % grid.threads_x;
    at.ty = threadIdx.x / grid.threads_x;
    at.row_block = blockIdx.x / grid.col_blocks;
    at.col = (blockIdx.x % grid.col_blocks * grid.threads_x + at.tx) * int64_t{kVec};
    at.row = at.row_block * grid.group + at.ty;
    at.end = rows;
    at.active = at.ty < grid.threads_y && at.col < channels;
    return at;
  }
};

// Calls body(row values of every input, count of them that are rows, first row) for kUnroll
// rows at a time while the next ones are on their way, and prepare() once while the first are.
// in: (rows, channels) contiguous each; a null one reads as nothing.
template <class T, int kVec, int kUnroll, int kInputs, class Prepare, class Body>
__device__ __forceinline__ void walk_rows(const WalkGrid& grid, const WalkPlace& at,
                                          const T* const (&in)[kInputs], int64_t channels,
                                          Prepare&& prepare, Body&& body) {
  using V = Vec<T, kVec>;
  if (!at.active || at.row >= at.end) return;
  const int64_t apart = grid.group * grid.row_blocks, stride = grid.threads_y * channels;
  int left = grid.turns - (at.row + (grid.turns - 1) * apart >= at.end);
  int64_t row = grid.back ? at.row + (left - 1) * apart : at.row;
  const int64_t step = grid.back ? -apart : apart;
  // NOTE: words, as the compiler would give each half of a value a register.
  using Words = std::conditional_t<sizeof(V) == sizeof(uint4), uint4, V>;
  Words next[kInputs][kUnroll];
  int found = 0;
  const auto load = [&] {
    const int64_t element = row * channels + at.col;
    found = 0;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (row + int64_t{u} * grid.threads_y >= at.end) break;
      found = u + 1;
#pragma unroll
      for (int k = 0; k < kInputs; ++k) {
        if (in[k]) next[k][u] = *reinterpret_cast<const Words*>(in[k] + element + u * stride);
      }
    }
  };
  load();
  prepare();
  while (true) {
    V values[kInputs][kUnroll];
#pragma unroll
    for (int k = 0; k < kInputs; ++k) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) values[k][u] = __builtin_bit_cast(V, next[k][u]);
    }
    const int count = found;
    row += step;
    if (--left > 0) load();
    body(values, count, row - step);
    if (left == 0) return;
  }
}

// Sums over the rows of threads of a block, in a fixed order, for kSums values of each channel:
// calls store(sum index, channel, sum). shared: 2 * kWalkThreads * kVec doubles.
template <int kVec, int kSums, class C, class Store>
__device__ __forceinline__ void block_channel_sums(const WalkGrid& grid, const WalkPlace& at,
                                                   const C (&sums)[kSums][kVec], double* shared,
                                                   int64_t channels, Store&& store) {
  const int width = grid.threads_x * kVec;
  const int groups = max(1, kWalkThreads / width);
  double* const second = shared + kWalkThreads * kVec;
  const int64_t first_channel = blockIdx.x % grid.col_blocks * width;
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    __syncthreads();
    if (at.ty < grid.threads_y) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) shared[at.ty * width + at.tx * kVec + i] = sums[s][i];
    }
    __syncthreads();
    const int group = threadIdx.x / width;
    if (group < groups) {
      for (int c = threadIdx.x % width; c < width; c += kWalkThreads) {
        double total = 0;
        for (int y = group; y < grid.threads_y; y += groups) total += shared[y * width + c];
        second[group * width + c] = total;
      }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < width && first_channel + c < channels; c += kWalkThreads) {
      double total = 0;
      for (int g = 0; g < groups; ++g) total += second[g * width + c];
      store(s, first_channel + c, total);
    }
  }
}

// The sum over a warp, in every lane.
__device__ __forceinline__ double warp_total(double value) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) value += __shfl_xor_sync(~0u, value, width);
  return value;
}

// ---- vectors of channels ----

// A vector (channels,) of T or, wide, of Compute<T>; null: absent.
struct ChannelVector {
  const void* data = nullptr;
  bool wide = false;

  template <class T>
  __device__ __forceinline__ Compute<T> at(int64_t channel, Compute<T> absent) const {
    if (data == nullptr) return absent;
    if (wide) return static_cast<const Compute<T>*>(data)[channel];
    return to_compute(static_cast<const T*>(data)[channel]);
  }

  // kVec channels from one on, by accesses of 16 bytes where the memory allows them.
  template <class T, int kVec>
  __device__ __forceinline__ void load(int64_t channel, Compute<T> absent,
                                       Compute<T> (&to)[kVec]) const {
    if (data == nullptr) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) to[i] = absent;
    } else if (wide) {
      load_as(static_cast<const Compute<T>*>(data) + channel, to);
    } else {
      load_as(static_cast<const T*>(data) + channel, to);
    }
  }

 private:
  template <class From, class C, int kVec>
  __device__ __forceinline__ static void load_as(const From* from, C (&to)[kVec]) {
    constexpr int kChunk = kVec * sizeof(From) >= 16 ? 16 / sizeof(From) : 1;
    if (kChunk > 1 && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
#pragma unroll
      for (int i = 0; i < kVec; i += kChunk) {
        const auto chunk = *reinterpret_cast<const Vec<From, kChunk>*>(from + i);
#pragma unroll
        for (int j = 0; j < kChunk; ++j) to[i + j] = to_compute(chunk.value[j]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVec; ++i) to[i] = to_compute(from[i]);
    }
  }
};

// What statistics are written to.
struct StatisticsResult {
  void* mean;  // (channels,) of Compute
  void* var;
  ChannelVector shift;
  void* running_mean;  // (channels,) of T or, wide, of Compute; or null
  void* running_var;
  bool mean_wide, var_wide;
  double momentum;
};

struct NormArguments {
  ChannelVector mean, var, weight, bias;
  double eps = 0;

  template <class T>
  __device__ __forceinline__ Compute<T> rstd(int64_t channel) const {
    using C = Compute<T>;
    if (var.data == nullptr) return C(1);
    return C(1) / sqrt(var.at<T>(channel, C(0)) + static_cast<C>(eps));
  }

  template <class T, int kVec>
  __device__ __forceinline__ void rstds(int64_t channel, Compute<T> (&to)[kVec]) const {
    using C = Compute<T>;
    var.load<T>(channel, C(1), to);
    if (var.data == nullptr) return;
#pragma unroll
    for (int i = 0; i < kVec; ++i) to[i] = C(1) / sqrt(to[i] + static_cast<C>(eps));
  }
};

}  // namespace fusedops
