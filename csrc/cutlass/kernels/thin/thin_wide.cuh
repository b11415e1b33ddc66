// d = act(x @ w.T + bias) where K is at most 64 and d is what takes the time. Blocks keep their
// columns of w in shared memory; each warp walks over rows by itself, with the next ones of x on
// their way in registers. mma.sync with fp32 sums; results lie in shared memory as they do in d
// between multiples of 16 bytes, so that all but their ends leave in whole units.
#pragma once

#include "csrc/common/device/activation.cuh"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/mma.cuh"
#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/cutlass/configs/wide_problem.h"

namespace fusedops::thin {

struct WideParams {
  Rows problem;
  WidePlan plan;
};

// The columns of d that a block forms.
struct WidePart {
  int first, count;
};

// ---- operands ----

// A warp's rows of x, as m16n8k16 has them. kPairs: two elements of a row are a word.
template <class T, int kK, bool kPairs>
struct WideRows {
  uint32_t value[kK / 16][4];

  __device__ __forceinline__ void load(const Rows& p, int64_t row0) {
    const int lane = threadIdx.x % 32, first = lane % 4 * 2;
    const int64_t row_stride = p.x.columns ? 1 : p.x.stride;
    const int64_t col_stride = p.x.columns ? p.x.stride : 1;
    const auto* x = static_cast<const uint16_t*>(p.x.data);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t row = row0 + lane / 4 + i * 8;
      const uint16_t* from = x + row * row_stride;
#pragma unroll
      for (int j = 0; j < kK / 8; ++j) {
        const int k = first + j * 8;
        const int count = row < p.m ? int(p.k) - k : 0;
        uint32_t pair = 0;
        if constexpr (kPairs) {
          if (count > 0) pair = __ldg(reinterpret_cast<const uint32_t*>(from + k));
        } else {
          if (count > 0) pair = __ldg(from + k * col_stride);
          if (count > 1) pair |= uint32_t{__ldg(from + (k + 1) * col_stride)} << 16;
        }
        value[j / 2][j % 2 * 2 + i] = pair;
      }
    }
  }
};

template <class T, int kK>
__device__ __forceinline__ void load_weight(const Rows& p, WidePart part, int columns, T* w,
                                            float* bias) {
  const T* source = static_cast<const T*>(p.w) + part.first * p.w_stride_n;
  for (int i = threadIdx.x; i < columns * kK; i += kWideThreads) {
    const int n = i / kK, k = i % kK;
    const bool inside = k < p.k && n < part.count;
    w[n * (kK + 8) + k] = inside ? source[n * p.w_stride_n + k * p.w_stride_k] : T(0.0f);
  }
  for (int i = threadIdx.x; i < columns; i += kWideThreads) {
    const bool inside = p.bias && i < part.count;
    bias[i] = inside ? to_compute(static_cast<const T*>(p.bias)[part.first + i]) : 0.0f;
  }
}

// ---- results ----

// Where a warp's chunk of d lies in shared memory and in memory.
template <class T>
struct WideTile {
  static constexpr int kPerUnit = 16 / int(sizeof(T));
  T* to;           // its first element in memory
  T* staged;       // its first unit
  int n, columns;  // between rows in memory, and of the chunk
  int stride;      // in shared memory
  int head;        // of the first row: elements behind a multiple of 16 bytes

  __device__ __forceinline__ WideTile(T* to, int n, int columns, uint4* staged, int line_units)
      : to(to),
        staged(reinterpret_cast<T*>(staged)),
        n(n),
        columns(columns),
        stride(line_units * kPerUnit),
        head(int(reinterpret_cast<uintptr_t>(to) / sizeof(T) % kPerUnit)) {}

  // Whether rows begin with a word.
  __device__ __forceinline__ bool has_words() const { return (head | n) % 2 == 0; }
  __device__ __forceinline__ int head_of(int row) const {
    return unsigned(head + row * n) % kPerUnit;
  }
  __device__ __forceinline__ T* at(int row, int column) const {
    return staged + row * stride + head_of(row) + column;
  }

  // The first rows of the chunk, by the warp.
  __device__ __forceinline__ void leave(int rows) const {
    const int lane = threadIdx.x % 32;
    // NOTE: no more than 128 elements of a row, so that a lane has at most one whole unit of it.
    const int lanes = columns > 8 * kPerUnit ? 16 : 8, unit = lane % lanes;
#pragma unroll 2
    for (int row = lane / lanes; row < rows; row += 32 / lanes) {
      const int first = head_of(row);
      if (unit < (first ? 1 : 0) || unit >= (first + columns) / kPerUnit) continue;
      auto* line = reinterpret_cast<uint4*>(to + int64_t{row} * n - first);
      line[unit] = reinterpret_cast<const uint4*>(staged + row * stride)[unit];
    }
    if ((head | n | columns) % kPerUnit == 0) return;
    // The ends: a lane has one of a row.
    const int row = lane / 2, first = head_of(row), end = first + columns;
    if (row >= rows) return;
    const int low = first ? kPerUnit : 0, high = max(end / kPerUnit * kPerUnit, low);
    const int begin = lane % 2 ? high : first, count = (lane % 2 ? end : min(low, end)) - begin;
    T* line = to + int64_t{row} * n - first + begin;
    const T* from = staged + row * stride + begin;
#pragma unroll
    for (int i = 0; i < kPerUnit - 1; ++i) {
      if (i < count) line[i] = from[i];
    }
  }
};

// 16 rows by 32 columns: [column tile][value], as m16n8k16 has them.
struct WideSums {
  static constexpr int kElements = 16;
  float value[4][4] = {};
  __device__ __forceinline__ float& operator[](int i) { return (&value[0][0])[i]; }
};

template <class T, int kK>
__device__ __forceinline__ void multiply(const uint32_t (&x)[kK / 16][4], const T* w,
                                         WideSums& sums) {
  const int lane = threadIdx.x % 32;
  const T* columns = w + (lane % 8 + lane / 16 * 8) * (kK + 8) + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < kK / 16; ++k) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      uint32_t right[4];
      load_matrices(right, columns + j * 16 * (kK + 8) + k * 16);
      mma_k16<T>(sums.value[j * 2], x[k], right[0], right[1]);
      mma_k16<T>(sums.value[j * 2 + 1], x[k], right[2], right[3]);
    }
  }
}

// The values of a lane's two rows, to their places. kWords: rows begin with a word.
template <bool kWords, class T>
__device__ __forceinline__ void put(const WideSums& sums, T* const (&to)[2], int column) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t pair = pack_pair<T>(sums.value[j][r * 2], sums.value[j][r * 2 + 1]);
      T* at = to[r] + column + j * 8;
      if constexpr (kWords) {
        *reinterpret_cast<uint32_t*>(at) = pair;
      } else {
        reinterpret_cast<uint16_t*>(at)[0] = uint16_t(pair);
        reinterpret_cast<uint16_t*>(at)[1] = uint16_t(pair >> 16);
      }
    }
  }
}

// act(x @ w.T + bias) of the chunk's columns, whose w and bias begin here, to its place.
template <class T, int kK>
__device__ __forceinline__ void stage(const WideTile<T>& tile, const uint32_t (&x)[kK / 16][4],
                                      const T* w, const float* bias, Activation activation) {
  const int lane = threadIdx.x % 32, first = lane % 4 * 2;
  T* const to[2] = {tile.at(lane / 4, first), tile.at(lane / 4 + 8, first)};
  const bool words = tile.has_words();
#pragma unroll 1
  for (int column = 0; column < tile.columns; column += kWideItem) {
    WideSums sums;
    multiply<T, kK>(x, w + column * (kK + 8), sums);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const auto two = *reinterpret_cast<const float2*>(bias + column + j * 8 + first);
      float (&z)[4] = sums.value[j];
      z[0] += two.x, z[1] += two.y, z[2] += two.x, z[3] += two.y;
    }
    activate_array<kAccuracyOf<T>>(activation, sums);
    if (words) {
      put<true>(sums, to, column);
    } else {
      put<false>(sums, to, column);
    }
  }
}

// ---- kernel ----

template <class T, int kK, bool kPairs>
__global__ void __launch_bounds__(kWideThreads, kK < 64 ? 3 : 2)
    wide_kernel(const __grid_constant__ WideParams params) {
  const Rows& p = params.problem;
  const WidePlan& plan = params.plan;
  extern __shared__ __align__(16) uint4 shared_units[];
  const int columns = plan.columns(), warp = threadIdx.x / 32;
  uint4* staged = shared_units + warp * kWideRows * plan.line_units;
  T* w = reinterpret_cast<T*>(shared_units + kWideWarps * kWideRows * plan.line_units);
  float* bias = reinterpret_cast<float*>(w + columns * (kK + 8));
  // Blocks of the same rows are neighbours: they share x in L2.
  const int64_t first_tile = int64_t{blockIdx.x / plan.parts} * kWideWarps + warp;
  const int64_t step = int64_t{gridDim.x / plan.parts} * kWideWarps;
  WidePart part{int(blockIdx.x % plan.parts) * plan.part, 0};
  part.count = min(plan.part, int(p.n) - part.first);

  wait_for_predecessor();
  WideRows<T, kK, kPairs> next;
  next.load(p, first_tile * kWideRows);
  load_weight<T, kK>(p, part, columns, w, bias);
  __syncthreads();

  const int64_t tiles = (p.m - 1) / kWideRows + 1;
  for (int64_t tile = first_tile; tile < tiles; tile += step) {
    const int64_t row0 = tile * kWideRows;
    const WideRows<T, kK, kPairs> x = next;
    if (tile + step < tiles) next.load(p, row0 + step * kWideRows);
#pragma unroll 1
    for (int chunk = 0; chunk < part.count; chunk += kWideChunk) {
#pragma unroll 1
      for (int pass = p.preact ? 0 : 1; pass < 2; ++pass) {
        T* d = static_cast<T*>(pass == 0 ? p.preact : p.d) + row0 * p.n + part.first + chunk;
        const WideTile<T> out(d, int(p.n), min(kWideChunk, part.count - chunk), staged,
                              plan.line_units);
        stage<T, kK>(out, x.value, w + chunk * (kK + 8), bias + chunk,
                     pass == 0 ? Activation::kNone : p.activation);
        __syncwarp();
        out.leave(int(min(int64_t{kWideRows}, p.m - row0)));
        __syncwarp();  // what the next chunk overwrites has left
      }
    }
  }
}

}  // namespace fusedops::thin
