// d = act(x @ w.T + bias) where K is at most 64 and d is what takes the time. Blocks keep their
// columns of w in shared memory and walk over tiles of rows, the next of x on its way in registers.
// mma.sync with fp32 sums, or FMA in chains of at most 32; results lie in shared memory as they do
// in d between multiples of 16 bytes, so that all but the ends of a run leave in whole units.
#pragma once

#include <type_traits>

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

// ---- operands ----

template <class T>
inline constexpr int kWideUnit = 16 / int(sizeof(T));  // elements of 16 bytes

// Elements between rows of x and of w in shared memory: WidePlan::stride.
template <class T, int kK>
inline constexpr int kWideStride = kK + kWideUnit<T>;

// A thread's part of a tile of x. kVectors: rows begin at 16 bytes and are whole units.
template <class T, int kK, bool kVectors>
struct WideRows {
  static constexpr int kStride = kWideStride<T, kK>, kElements = kVectors ? kWideUnit<T> : 1;
  static constexpr int kLine = kK / kElements, kUnits = kWideRows * kLine;
  static constexpr int kCount = (kUnits + kWideThreads - 1) / kWideThreads;
  using Element = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  using Unit = std::conditional_t<kVectors, uint4, Element>;
  Unit held[kCount];
  // Where the thread's first unit is, and how far the next ones are; a warp reads along a line of
  // x.
  int row, col, row_step, col_step;

  __device__ __forceinline__ explicit WideRows(bool columns) {
    const bool across = !kVectors && columns;
    const int thread = threadIdx.x;
    row = across ? thread % kWideRows : thread / kLine;
    col = across ? thread / kWideRows : thread % kLine * kElements;
    row_step = across ? 0 : kWideThreads / kLine;
    col_step = across ? kWideThreads / kWideRows : 0;
  }
  // The units of a tile of so many rows; zeros where x ends.
  __device__ __forceinline__ void load(const Rows& p, int64_t row0, int tile_rows) {
    const int rows = int(min(p.m - row0, int64_t{tile_rows}));
    const int64_t row_stride = p.x.columns ? 1 : p.x.stride;
    const int64_t col_stride = p.x.columns ? p.x.stride : 1;
    const int64_t step = row_step * row_stride + col_step * col_stride;
    const T* x = static_cast<const T*>(p.x.data) + (row0 + row) * row_stride + col * col_stride;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool inside = row + i * row_step < rows && col + i * col_step < p.k;
      held[i] = inside ? __ldg(reinterpret_cast<const Unit*>(x + i * step)) : Unit{};
    }
  }
  __device__ __forceinline__ void store(T* shared) const {
    T* to = shared + row * kStride + col;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (row + i * row_step >= kWideRows) break;
      *reinterpret_cast<Unit*>(to + i * (row_step * kStride + col_step)) = held[i];
    }
  }
};

// The columns of d that a block forms.
struct WidePart {
  int first, count;
};

template <class T, int kK>
__device__ __forceinline__ void load_weight(const Rows& p, WidePart part, int columns, T* w,
                                            float* bias) {
  const T* source = static_cast<const T*>(p.w) + part.first * p.w_stride_n;
  constexpr int kUnit = kWideUnit<T>, kUnits = kK / kUnit;
  for (int i = threadIdx.x; i < columns * kUnits; i += kWideThreads) {
    const int n = i / kUnits, first = i % kUnits * kUnit;
    Vec<T, kUnit> unit;
#pragma unroll
    for (int j = 0; j < kUnit; ++j) {
      const bool inside = first + j < p.k && n < part.count;
      unit.value[j] = inside ? source[n * p.w_stride_n + (first + j) * p.w_stride_k] : T(0.0f);
    }
    *reinterpret_cast<Vec<T, kUnit>*>(w + n * kWideStride<T, kK> + first) = unit;
  }
  for (int i = threadIdx.x; i < columns; i += kWideThreads) {
    const bool inside = p.bias && i < part.count;
    bias[i] = inside ? to_compute(static_cast<const T*>(p.bias)[part.first + i]) : 0.0f;
  }
}

// ---- results ----

// Where a tile of d lies in shared memory and in memory.
template <class T>
struct WideTile {
  static constexpr int kPerUnit = kWideUnit<T>;
  T* to;           // its first element in memory
  T* staged;       // its first unit
  int n, columns;  // between rows in memory, and of the tile
  int stride;      // in shared memory; n where the tile is one run
  int head;        // of the first row: elements behind a multiple of 16 bytes

  __device__ __forceinline__ WideTile(const WidePlan& plan, T* to, int n, int columns,
                                      uint4* staged)
      : to(to),
        staged(reinterpret_cast<T*>(staged)),
        n(n),
        columns(columns),
        stride(plan.line_units ? plan.line_units * kPerUnit : n),
        head(int(reinterpret_cast<uintptr_t>(to) / sizeof(T) % kPerUnit)) {}

  __device__ __forceinline__ bool is_run() const { return stride == n; }
  // Whether pairs of elements of a row begin where such a pair may.
  __device__ __forceinline__ bool has_pairs() const { return (head | n) % 2 == 0; }
  __device__ __forceinline__ int head_of(int row) const {
    return is_run() ? head : unsigned(head + row * n) % kPerUnit;
  }
  __device__ __forceinline__ T* at(int row, int column) const {
    return staged + row * stride + head_of(row) + column;
  }

  // The first rows of the tile, by all threads.
  __device__ __forceinline__ void leave(int rows, int lane_shift) const {
    if (is_run()) {
      leave_run(rows * n);
    } else if ((head | n | columns) % kPerUnit == 0) {
      leave_rows<true>(rows, lane_shift);
    } else {
      leave_rows<false>(rows, lane_shift);
    }
  }
  __device__ __forceinline__ void leave_run(int count) const {
    const int thread = threadIdx.x, end = head + count;
    const int low = head ? 1 : 0, high = max(int(unsigned(end) / kPerUnit), low);
    T* line = to - head;
#pragma unroll 2
    for (int i = low + thread; i < high; i += kWideThreads) {
      reinterpret_cast<uint4*>(line)[i] = reinterpret_cast<const uint4*>(staged)[i];
    }
    const int before = head + thread, behind = high * kPerUnit + thread;
    if (before < min(low * kPerUnit, end)) line[before] = staged[before];
    if (behind < end) line[behind] = staged[behind];
  }
  // kWhole: all rows begin and end with a unit. A lane has one unit of a row, which are no more
  // than 32, and an element of its ends.
  template <bool kWhole>
  __device__ __forceinline__ void leave_rows(int rows, int lane_shift) const {
    const int thread = threadIdx.x, unit = thread & ((1 << lane_shift) - 1);
#pragma unroll 2
    for (int row = thread >> lane_shift; row < rows; row += kWideThreads >> lane_shift) {
      const int first = kWhole ? 0 : head_of(row), end = first + columns;
      const int low = first ? 1 : 0, high = max(int(unsigned(end) / kPerUnit), low);
      T* line = to + (row * n - first);
      const T* from = staged + row * stride;
      if (unit >= low && unit < high) {
        reinterpret_cast<uint4*>(line)[unit] = reinterpret_cast<const uint4*>(from)[unit];
      }
      if constexpr (!kWhole) {
        const int before = first + unit, behind = high * kPerUnit + unit;
        if (before < min(low * kPerUnit, end)) line[before] = from[before];
        if (behind < end) line[behind] = from[behind];
      }
    }
  }
};

// A warp's 16 rows by 32 columns: [column tile][value], as m16n8k16 has them.
struct WideSums {
  static constexpr int kElements = 16;
  float value[4][4] = {};
  __device__ __forceinline__ float& operator[](int i) { return (&value[0][0])[i]; }
};

template <class T, int kK>
__device__ __forceinline__ void multiply(const T* x, const T* w, WideSums& sums) {
  constexpr int kStride = kWideStride<T, kK>;
  const int lane = threadIdx.x % 32;
  const T* rows = x + lane % 16 * kStride + lane / 16 * 8;
  const T* columns = w + (lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < kK; k += 16) {
    uint32_t left[4];
    load_matrices(left, rows + k);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      uint32_t right[4];
      load_matrices(right, columns + j * 16 * kStride + k);
      mma_k16<T>(sums.value[j * 2], left, right[0], right[1]);
      mma_k16<T>(sums.value[j * 2 + 1], left, right[2], right[3]);
    }
  }
}

// fp32, by the same lanes.
template <int kK>
__device__ __forceinline__ void multiply(const float* x, const float* w, WideSums& sums) {
  constexpr int kStride = kWideStride<float, kK>, kChain = 32;
  const int lane = threadIdx.x % 32;
  const float* rows = x + lane / 4 * kStride;
  const float* columns = w + lane % 4 * 2 * kStride;
#pragma unroll
  for (int chain = 0; chain < kK; chain += kChain) {
    WideSums part;
#pragma unroll
    for (int k = chain; k < min(chain + kChain, kK); k += 4) {
      const auto upper = *reinterpret_cast<const Vec<float, 4>*>(rows + k);
      const auto lower = *reinterpret_cast<const Vec<float, 4>*>(rows + 8 * kStride + k);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const auto b =
            *reinterpret_cast<const Vec<float, 4>*>(columns + (j / 2 * 8 + j % 2) * kStride + k);
        float (&z)[4] = part.value[j / 2];
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          z[j % 2] = fmaf(upper.value[v], b.value[v], z[j % 2]);
          z[j % 2 + 2] = fmaf(lower.value[v], b.value[v], z[j % 2 + 2]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < WideSums::kElements; ++i) sums[i] += part[i];
  }
}

// The values of a lane's two rows, to their places; `left` columns are the tile's. kPairs: two of
// a row at a time.
template <bool kPairs, class T>
__device__ __forceinline__ void put(const WideSums& sums, T* const (&to)[2], int left) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      Vec<T, 2> pair;
      if constexpr (sizeof(T) == 2) {
        *reinterpret_cast<uint32_t*>(&pair) =
            pack_pair<T>(sums.value[j][r * 2], sums.value[j][r * 2 + 1]);
      } else {
        pair = {sums.value[j][r * 2], sums.value[j][r * 2 + 1]};
      }
      T* at = to[r] + j * 8;
      if constexpr (kPairs) {
        *reinterpret_cast<Vec<T, 2>*>(at) = pair;
      } else {
        if (j * 8 < left) at[0] = pair.value[0];
        if (j * 8 + 1 < left) at[1] = pair.value[1];
      }
    }
  }
}

// act(sums + bias) of a warp's rows and columns to the tile.
template <class T>
__device__ __forceinline__ void stage(const WideTile<T>& tile, WideSums& sums, const float* bias,
                                      Activation activation, int row, int column) {
  const int lane = threadIdx.x % 32, first = lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const auto two = *reinterpret_cast<const float2*>(bias + column + j * 8 + first);
    float (&z)[4] = sums.value[j];
    z[0] += two.x, z[1] += two.y, z[2] += two.x, z[3] += two.y;
  }
  activate_array<kAccuracyOf<T>>(activation, sums);
  row += lane / 4;
  T* const to[2] = {tile.at(row, column + first), tile.at(row + 8, column + first)};
  // NOTE: behind a row of a run is the next one.
  if (tile.is_run() && column + kWideItem > tile.columns) {
    put<false>(sums, to, tile.columns - column - first);
  } else if (tile.has_pairs()) {
    put<true>(sums, to, kWideItem);
  } else {
    put<false>(sums, to, kWideItem);
  }
}

// ---- kernel ----

template <class T, int kK, bool kVectors>
__global__ void __launch_bounds__(kWideThreads, (kK < 64 ? 4 : 3) - (sizeof(T) == 4))
    wide_kernel(const __grid_constant__ WideParams params) {
  const Rows& p = params.problem;
  const WidePlan& plan = params.plan;
  extern __shared__ __align__(16) uint4 shared_units[];
  constexpr int kStride = kWideStride<T, kK>;
  const int columns = plan.columns();
  T* x = reinterpret_cast<T*>(shared_units + plan.tile_units);
  T* w = x + kWideRows * kStride;
  float* bias = reinterpret_cast<float*>(w + columns * kStride);
  // Blocks of a tile's parts are neighbours: they share x in L2.
  const int64_t first_tile = blockIdx.x / plan.parts, step = gridDim.x / plan.parts;
  WidePart part{int(blockIdx.x % plan.parts) * plan.part, 0};
  part.count = min(plan.part, int(p.n) - part.first);
  const int warp = threadIdx.x / 32, row_items = plan.rows / 16, row_shift = __ffs(row_items) - 1;
  const int items = row_items * ((part.count - 1) / kWideItem + 1);

  wait_for_predecessor();
  load_weight<T, kK>(p, part, columns, w, bias);
  WideRows<T, kK, kVectors> next(p.x.columns);
  next.load(p, first_tile * plan.rows, plan.rows);
  next.store(x);

  const int64_t tiles = (p.m - 1) / plan.rows + 1;
  for (int64_t tile = first_tile; tile < tiles; tile += step) {
    const int64_t row0 = tile * plan.rows;
    const bool more = tile + step < tiles;
    if (more) next.load(p, row0 + step * plan.rows, plan.rows);
#pragma unroll 1
    for (int pass = p.preact ? 0 : 1; pass < 2; ++pass) {
      T* d = static_cast<T*>(pass == 0 ? p.preact : p.d) + row0 * p.n + part.first;
      const WideTile<T> out(plan, d, int(p.n), part.count, shared_units);
      __syncthreads();  // x is there, and what was here before has left
#pragma unroll 1
      for (int item = warp; item < items; item += kWideThreads / 32) {
        const int row = (item & (row_items - 1)) * 16, column = (item >> row_shift) * kWideItem;
        WideSums sums;
        if constexpr (sizeof(T) == 2) {
          multiply<T, kK>(x + row * kStride, w + column * kStride, sums);
        } else {
          multiply<kK>(x + row * kStride, w + column * kStride, sums);
        }
        stage<T>(out, sums, bias, pass == 0 ? Activation::kNone : p.activation, row, column);
      }
      __syncthreads();
      out.leave(int(min(int64_t{plan.rows}, p.m - row0)), plan.lane_shift());
    }
    if (more) next.store(x);
  }
}

}  // namespace fusedops::thin
