// Sums over edges of their values times their operands: what is left of the gradient of an edge
// MLP's first weight once dz_1 is known by rows. And that gradient from the sums.
#pragma once

#include "csrc/common/device/mma.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/cuda/points/edges/edge_problem.h"

namespace fusedops {

inline constexpr int kEdgeProductWarps = 8;
inline constexpr int kEdgeProductSlice = 64;  // channels of a block
inline constexpr int kEdgeOperandColumns = 2 * kEdgePlane;
inline constexpr int kEdgeMomentRows = 32;  // behind those of the channels

// Row c: the sum of rows[e][c] * operand[e]. Row width + i: that of weight * operand[e][i] *
// operand[e]; row width + 16: of weight * operand[e]. One plane's second half is 0.
template <class T>
struct EdgeProducts {
  const T* rows;      // [groups][k][width]
  const T* operands;  // [planes][edges][kEdgePlane]
  const int4* list;
  const int* ends;
  int groups, k, width, planes;
  int64_t edges;
  float* partial;  // [grid.x][width + kEdgeMomentRows][kEdgeOperandColumns]
};

// Sixteen rows of a warp.
template <class T>
struct EdgeProductTile {
  static constexpr int kRows = 16, kLd = kEdgeProductSlice + 8, kSmall = kEdgeOperandColumns + 8;
  T values[kRows * kLd];
  T operands[kRows * kSmall];
  T weighted[2][kRows * kSmall];  // weight * operand, and what rounding left of it

  // The lane's part, on its way: a row and every other piece of eight columns.
  struct Fetched {
    uint4 values[kEdgeProductSlice / 16], operand;
    float weight;
  };

  static __device__ __forceinline__ int own_row() { return static_cast<int>(threadIdx.x % 32) / 2; }

  // The record of the lane's row of those from `first` on; none behind the end.
  static __device__ __forceinline__ int4 record_of(const EdgeProducts<T>& a, int64_t first,
                                                   int end) {
    return first + own_row() < end ? __ldg(a.list + first + own_row()) : int4{};
  }

  static __device__ __forceinline__ Fetched fetch(const EdgeProducts<T>& a, int64_t first, int end,
                                                  const int4& record, int start) {
    const int part = static_cast<int>(threadIdx.x % 2);
    const bool live = first + own_row() < end;
    const T* from = a.rows + (int64_t{record.y} * a.k + record.z) * a.width + start;
    Fetched found{};
#pragma unroll
    for (int i = 0; i < kEdgeProductSlice / 16; ++i) {
      const int column = 16 * i + 8 * part;
      if (live && start + column < a.width) {
        found.values[i] = __ldg(reinterpret_cast<const uint4*>(from + column));
      }
    }
    if (live && part < a.planes) {
      found.operand =
          __ldg(reinterpret_cast<const uint4*>(a.operands) + part * a.edges + first + own_row());
    }
    found.weight = __int_as_float(record.w);
    return found;
  }

  __device__ __forceinline__ void store(const Fetched& found, bool moments) {
    const int r = own_row(), part = static_cast<int>(threadIdx.x % 2);
#pragma unroll
    for (int i = 0; i < kEdgeProductSlice / 16; ++i) {
      *reinterpret_cast<uint4*>(values + r * kLd + 16 * i + 8 * part) = found.values[i];
    }
    const uint4& operand = found.operand;
    const int at = r * kSmall + 8 * part;
    *reinterpret_cast<uint4*>(operands + at) = operand;
    if (!moments) return;
    const float weight = found.weight;
    uint4 high, low;
    weigh(operand.x, weight, high.x, low.x);
    weigh(operand.y, weight, high.y, low.y);
    weigh(operand.z, weight, high.z, low.z);
    weigh(operand.w, weight, high.w, low.w);
    *reinterpret_cast<uint4*>(weighted[0] + at) = high;
    *reinterpret_cast<uint4*>(weighted[1] + at) = low;
  }

  // 16 columns of rows [kRows][ld] as an operand by rows (of its transpose), and by columns.
  static __device__ __forceinline__ void load_left(const T* rows, int ld, uint32_t (&x)[4]) {
    const int i = static_cast<int>(threadIdx.x % 32) / 8, r = static_cast<int>(threadIdx.x % 8);
    load_transposed(x, rows + (i / 2 * 8 + r) * ld + i % 2 * 8);
  }
  static __device__ __forceinline__ void load_right(const T* rows, int ld, uint32_t (&x)[4]) {
    const int i = static_cast<int>(threadIdx.x % 32) / 8, r = static_cast<int>(threadIdx.x % 8);
    load_transposed(x, rows + (i % 2 * 8 + r) * ld + i / 2 * 8);
  }

 private:
  static __device__ __forceinline__ void weigh(uint32_t pair, float weight, uint32_t& high,
                                               uint32_t& low) {
    const float2 v = unpack_pair<T>(pair);
    high = pack_pair<T>(weight * v.x, weight * v.y);
    const float2 near = unpack_pair<T>(high);
    low = pack_pair<T>(fmaf(weight, v.x, -near.x), fmaf(weight, v.y, -near.y));
  }
};

// d += a b of 16 x 16 values.
template <class T>
__device__ __forceinline__ void add_products(float (&d)[2][4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[4]) {
  mma_k16<T>(d[0], a, b[0], b[1]);
  mma_k16<T>(d[1], a, b[2], b[3]);
}

// Blocks (x, s) take channels 64 s and on; those of s = 0 the moments, too.
template <class T>
__global__ void __launch_bounds__(32 * kEdgeProductWarps) edge_products_kernel(EdgeProducts<T> a) {
  constexpr int kTiles = kEdgeProductSlice / 16, kAll = kTiles + kEdgeMomentRows / 16;
  __shared__ __align__(16) EdgeProductTile<T> tiles[kEdgeProductWarps];
  __shared__ float total[16 * kAll * kEdgeOperandColumns];
  using Tile = EdgeProductTile<T>;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  Tile& tile = tiles[warp];
  const int start = static_cast<int>(blockIdx.y) * kEdgeProductSlice;
  const bool moments = start == 0;
  const int end = __ldg(a.ends + a.groups - 1);
  const uint32_t one = lane < 4 ? pack_pair<T>(1.f, 1.f) : 0u;
  const uint32_t ones[4] = {one, 0u, one, 0u};
  float sum[kAll][2][4] = {};
  const int stride = static_cast<int>(gridDim.x) * kEdgeProductWarps * Tile::kRows;
  int64_t first = (int64_t{blockIdx.x} * kEdgeProductWarps + warp) * Tile::kRows;
  // NOTE: rows are on their way for a turn, and where they are for two.
  typename Tile::Fetched found = Tile::fetch(a, first, end, Tile::record_of(a, first, end), start);
  int4 record = Tile::record_of(a, first + stride, end);
  for (; first < end; first += stride) {
    __syncwarp();
    tile.store(found, moments);
    __syncwarp();
    found = Tile::fetch(a, first + stride, end, record, start);
    record = Tile::record_of(a, first + int64_t{2} * stride, end);
    uint32_t left[4], right[4];
    Tile::load_right(tile.operands, Tile::kSmall, right);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      Tile::load_left(tile.values + 16 * m, Tile::kLd, left);
      add_products<T>(sum[m], left, right);
    }
    if (!moments) continue;
    Tile::load_left(tile.operands, Tile::kSmall, left);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      Tile::load_right(tile.weighted[part], Tile::kSmall, right);
      add_products<T>(sum[kTiles], left, right);
      add_products<T>(sum[kTiles + 1], ones, right);
    }
  }
  // Warps one after the other, so that two runs agree.
  for (int w = 0; w < kEdgeProductWarps; ++w) {
    __syncthreads();
    if (w != warp) continue;
#pragma unroll
    for (int i = 0; i < 8 * kAll; ++i) {
      const int m = i / 8, n = i / 4 % 2, v = i % 4;
      const int row = 16 * m + 8 * (v / 2) + lane / 4, column = 8 * n + 2 * (lane % 4) + v % 2;
      float& to = total[row * kEdgeOperandColumns + column];
      to = w > 0 ? to + sum[m][n][v] : sum[m][n][v];
    }
  }
  __syncthreads();
  float* out = a.partial + int64_t{blockIdx.x} * (a.width + kEdgeMomentRows) * kEdgeOperandColumns;
  for (int i = static_cast<int>(threadIdx.x); i < 16 * kAll * kEdgeOperandColumns;
       i += 32 * kEdgeProductWarps) {
    const int row = i / kEdgeOperandColumns, column = i % kEdgeOperandColumns;
    const bool is_moment = row >= kEdgeProductSlice;
    const int to = is_moment ? a.width + row - kEdgeProductSlice : start + row;
    if (is_moment ? !moments : to >= a.width) continue;
    out[to * kEdgeOperandColumns + column] = total[i];
  }
}

// affine: its scale, or null for 1; dense: (A, B) of the batch's statistics, or null.
template <class T>
struct EdgeFirstGrads {
  const float* products;  // [width + kEdgeMomentRows][kEdgeOperandColumns]
  const float2* affine;
  const float2* dense;
  const T* weight;  // [planes][width][kEdgePlane]
  int width, planes;
  T* out;  // [width][kEdgeOperandColumns]: of the offsets' weight, of the features', zeros
};

// The gradient of what channel c takes of an operand's column: scale * sum of dz_1 * operand
// + A * sum of operand + B * sum of y_1 * operand.
template <class T>
__device__ __forceinline__ float first_grad(const EdgeFirstGrads<T>& a, int c, int column) {
  const float* from = a.products + column;
  float value = from[c * kEdgeOperandColumns];
  if (a.affine) value *= a.affine[c].x;
  if (!a.dense) return value;
  const float* moments = from + a.width * kEdgeOperandColumns;
  float product = 0.f;
  for (int i = 0; i < a.planes * kEdgePlane; ++i) {
    const T w = a.weight[(i / kEdgePlane * a.width + c) * kEdgePlane + i % kEdgePlane];
    product = fmaf(to_compute(w), moments[i * kEdgeOperandColumns], product);
  }
  const float2 ab = a.dense[c];
  return value + fmaf(ab.x, moments[2 * kEdgePlane * kEdgeOperandColumns], ab.y * product);
}

// Offsets are operands twice, rounded and what rounding left; features begin with the second plane
// and end behind the offsets.
template <class T>
__global__ void edge_first_grads_kernel(EdgeFirstGrads<T> a) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int c = i / kEdgeOperandColumns, place = i % kEdgeOperandColumns;
  if (c >= a.width) return;
  const int feature = place - 3;
  float value = 0.f;
  if (feature < 0) {
    value = first_grad(a, c, place) + first_grad(a, c, place + 3);
  } else if (feature < kEdgeMostFeatures) {
    value = first_grad(a, c, feature < kEdgePlane ? kEdgePlane + feature : feature - 2);
  }
  a.out[i] = from_compute<T>(value);
}

}  // namespace fusedops
