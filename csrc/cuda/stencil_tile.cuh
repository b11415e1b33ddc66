// What the stencil kernels share: how blocks cover the planes, and the tile of inputs with its halo
// in shared memory, in the compute type.
#pragma once

#include <algorithm>

#include "common/dispatch.h"
#include "common/pdl.cuh"
#include "common/stencil.h"
#include "common/vec.cuh"

namespace fusedops {

inline constexpr int kStencilThreads = 256;
inline constexpr int kStencilCols = 4;                // neighbouring outputs of a thread
inline constexpr int kStencilSharedBytes = 48 << 10;  // what a kernel gets without asking

// Rows of a thread's outputs: it slides down a column of the tile, so that an input row is read
// from shared memory once for all its outputs. One row in kernels of one-row stencils.
constexpr int stencil_rows(int kernel_h) { return kernel_h == 1 ? 1 : 4; }

// Kernels are compiled for these taps of one depth, 16 * kh + kw; 0: any other, at run time.
using StencilInstances = Choices<0x13, 0x15, 0x17, 0x33, 0x55, 0x77, 0>;
constexpr int stencil_instance(const StencilShape& s) {
  const bool row = s.kh == 1, square = s.kh == s.kw;
  const bool compiled = (row || square) && (s.kw == 3 || s.kw == 5 || s.kw == 7);
  return compiled ? 16 * s.kh + s.kw : 0;
}

// A block of threads_x * threads_y * threads_z threads covers a tile of 4 threads_x columns and
// rows * threads_y rows in each of threads_z planes. Powers of two.
struct StencilGrid {
  int threads_x, threads_y, threads_z;
  int rows;              // of a thread
  int pad;               // columns of halo on each side, a multiple of 4
  int pitch, tile_rows;  // of a plane in shared memory, in elements
  int64_t tiles_x, tiles_y;
  int64_t plane_blocks;

  constexpr int threads() const { return threads_x * threads_y * threads_z; }
  constexpr int tile_cols() const { return threads_x * kStencilCols; }
  constexpr int block_rows() const { return threads_y * rows; }
  constexpr int64_t shared_elements() const { return int64_t{threads_z} * tile_rows * pitch; }
};

// `members`: planes that a block may put side by side.
inline StencilGrid stencil_grid(const StencilShape& s, int64_t members, int compute_bytes) {
  StencilGrid g{};
  g.rows = stencil_rows(stencil_instance(s) / 16);
  g.pad = static_cast<int>(round_up(s.kw / 2, 4));
  int x = 1, y = 1, z = 1;
  const int max_x = s.h > 1 ? 32 : kStencilThreads;
  while (x < max_x && x * kStencilCols < s.w) x *= 2;
  while (x * y < kStencilThreads && y * g.rows < s.h) y *= 2;
  while (x * y * z < kStencilThreads && z < members) z *= 2;
  for (;;) {
    g.threads_x = x, g.threads_y = y, g.threads_z = z;
    g.pitch = g.tile_cols() + 2 * g.pad;
    g.tile_rows = g.block_rows() + 2 * (s.kh / 2);
    if (g.shared_elements() * compute_bytes <= kStencilSharedBytes) break;
    int& largest = z > 1 ? z : y > 1 ? y : x;
    largest /= 2;
  }
  g.tiles_x = ceil_div(s.w, g.tile_cols());
  g.tiles_y = ceil_div(s.h, g.block_rows());
  g.plane_blocks = ceil_div(members, z);
  return g;
}

// The thread's place in its block, and the block's place.
struct StencilPlace {
  int x, y, z;             // of the thread
  int64_t tile_x, tile_y;  // first column and row of the tile
};

__device__ __forceinline__ StencilPlace stencil_place(const StencilGrid& g, int64_t tile) {
  StencilPlace p;
  const int t = threadIdx.x;
  p.x = t % g.threads_x;
  p.y = t / g.threads_x % g.threads_y;
  p.z = t / (g.threads_x * g.threads_y);
  const int64_t row = tile / g.tiles_x;
  p.tile_x = (tile - row * g.tiles_x) * g.tile_cols();
  p.tile_y = row * g.block_rows();
  return p;
}

// Four neighbouring elements of a row from column c on, beyond the border by the padding's rule.
template <class T>
__device__ __forceinline__ Vec<T, kStencilCols> load_four(const T* row, int64_t c, int64_t w,
                                                          int reach, Padding padding,
                                                          bool aligned) {
  if (aligned && c >= 0 && c + kStencilCols <= w) {
    return *reinterpret_cast<const Vec<T, kStencilCols>*>(row + c);
  }
  Vec<T, kStencilCols> v;
#pragma unroll
  for (int i = 0; i < kStencilCols; ++i) {
    const int64_t source = source_index(c + i, w, reach, padding);
    v.value[i] = source < 0 ? T(0) : row[source];
  }
  return v;
}

// Fills the tile from depth slice `slice` (negative: zeros) of the planes plane_of(0..threads_z-1)
// (null: zeros). Rows are shared out among groups of threads_x threads.
template <class T, class PlaneOf>
__device__ __forceinline__ void load_tile(Compute<T>* tile, const StencilShape& s,
                                          const StencilGrid& g, const StencilPlace& place,
                                          int64_t slice, bool aligned, PlaneOf&& plane_of) {
  using C = Compute<T>;
  constexpr int kBatch = 4;  // loads in flight per thread
  const int reach_y = s.kh / 2, reach_x = s.kw / 2;
  const int groups = blockDim.x / g.threads_x, group = threadIdx.x / g.threads_x;
  const int rows = g.threads_z * g.tile_rows;
  // The row's first element, or null for zeros
  const auto row_of = [&](int r) -> const T* {
    const int z = r / g.tile_rows;
    const int64_t y = place.tile_y + (r - z * g.tile_rows) - reach_y;
    const int64_t source = source_index(y, s.h, reach_y, s.padding);
    const T* plane = plane_of(z);
    if (plane == nullptr || source < 0 || slice < 0) return nullptr;
    return plane + (slice * s.h + source) * s.w;
  };

  // The body of the rows
  const int64_t column = place.tile_x + place.x * kStencilCols;
  for (int first = group; first < rows; first += kBatch * groups) {
    Vec<T, kStencilCols> v[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int r = first + b * groups;
      const T* row = r < rows ? row_of(r) : nullptr;
      v[b] = row ? load_four(row, column, s.w, reach_x, s.padding, aligned)
                 : Vec<T, kStencilCols>{T(0), T(0), T(0), T(0)};
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int r = first + b * groups;
      if (r >= rows) break;
      Vec<C, kStencilCols> wide;
#pragma unroll
      for (int i = 0; i < kStencilCols; ++i) wide.value[i] = to_compute(v[b].value[i]);
      C* to = tile + r * g.pitch + g.pad + place.x * kStencilCols;
      *reinterpret_cast<Vec<C, kStencilCols>*>(to) = wide;
    }
  }

  // The halo: reach_x columns on either side
  for (int i = threadIdx.x; i < rows * 2 * reach_x; i += blockDim.x) {
    const int r = i / (2 * reach_x);
    const int side = i - r * 2 * reach_x;
    const int offset = side < reach_x ? side - reach_x : g.tile_cols() + side - reach_x;
    const T* row = row_of(r);
    const int64_t source = source_index(place.tile_x + offset, s.w, reach_x, s.padding);
    tile[r * g.pitch + g.pad + offset] = row && source >= 0 ? to_compute(row[source]) : C(0);
  }
}

// One row of a thread's inputs: its four columns and kReach more on each side.
template <int kReach, class C>
__device__ __forceinline__ void load_row(const C* at, C (&values)[kStencilCols + 2 * kReach]) {
  const auto middle = *reinterpret_cast<const Vec<C, kStencilCols>*>(at);
#pragma unroll
  for (int i = 0; i < kReach; ++i) {
    values[i] = at[i - kReach];
    values[kReach + kStencilCols + i] = at[kStencilCols + i];
  }
#pragma unroll
  for (int i = 0; i < kStencilCols; ++i) values[kReach + i] = middle.value[i];
}

}  // namespace fusedops
