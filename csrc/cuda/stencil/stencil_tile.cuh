// What the stencil kernels share: how blocks cover the planes, and the tile of inputs with its halo
// in shared memory, in the compute type.
#pragma once

#include <algorithm>

#include "csrc/common/device/division.cuh"
#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/stencil.h"

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
  int log_x, log_y;      // of threads_x and threads_y
  int rows;              // of a thread
  int pad;               // columns of halo on each side, a multiple of 4
  int pitch, tile_rows;  // of a plane in shared memory, in elements
  int64_t tiles_x, tiles_y;
  int64_t plane_blocks;
  unsigned row_magic;  // r / tile_rows = r * row_magic >> kRowMagicShift
  BorderMap map_x, map_y;

  constexpr int threads() const { return threads_x * threads_y * threads_z; }
  constexpr int tile_cols() const { return threads_x * kStencilCols; }
  constexpr int block_rows() const { return threads_y * rows; }
  constexpr int64_t shared_elements() const { return int64_t{threads_z} * tile_rows * pitch; }
};

// NOTE: exact while (rows of a block) * tile_rows < 2^20; 48 KB hold fewer than 2560 rows, and more
// than 400 rows only where tile_rows < 200.
inline constexpr int kRowMagicShift = 20;

// `members`: planes that a block may put side by side; fill: blocks that the grid shall have, of a
// warp at least; static_bytes: what the kernel has of shared memory beside the tile.
inline StencilGrid stencil_grid(const StencilShape& s, int64_t members, int64_t fill,
                                int compute_bytes, int static_bytes) {
  StencilGrid g{};
  g.rows = stencil_rows(stencil_instance(s) / 16);
  g.pad = static_cast<int>(round_up(s.kw / 2, 4));
  int x = 1, y = 1, z = 1;
  const int max_x = s.h > 1 ? 32 : kStencilThreads;
  while (x < max_x && x * kStencilCols < s.w) x *= 2;
  while (x * y < kStencilThreads && y * g.rows < s.h) y *= 2;
  const auto blocks = [&](int of_y, int of_z) {
    const int64_t tiles =
        ceil_div(s.w, int64_t{x} * kStencilCols) * ceil_div(s.h, int64_t{of_y} * g.rows);
    return tiles * s.d * ceil_div(members, int64_t{of_z});
  };
  // More halo than tile is too much.
  while (y / 2 * g.rows >= std::max<int64_t>(s.kh, 2) && x * y > 32 && blocks(y, 1) < fill) y /= 2;
  while (x * y * z < kStencilThreads && z < members &&
         (x * y * z < 32 || blocks(y, 2 * z) >= fill)) {
    z *= 2;
  }
  for (;;) {
    g.threads_x = x, g.threads_y = y, g.threads_z = z;
    g.pitch = g.tile_cols() + 2 * g.pad;
    g.tile_rows = g.block_rows() + 2 * (s.kh / 2);
    if (g.shared_elements() * compute_bytes + static_bytes <= kStencilSharedBytes) break;
    int& largest = z > 1 ? z : y > 1 ? y : x;
    largest /= 2;
  }
  while (1 << g.log_x < x) ++g.log_x;
  while (1 << g.log_y < y) ++g.log_y;
  g.tiles_x = ceil_div(s.w, g.tile_cols());
  g.tiles_y = ceil_div(s.h, g.block_rows());
  g.plane_blocks = ceil_div(members, z);
  g.row_magic = (1u << kRowMagicShift) / g.tile_rows + 1;
  g.map_x = BorderMap(s.w, s.padding);
  g.map_y = BorderMap(s.h, s.padding);
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
  p.x = t & (g.threads_x - 1);
  p.y = t >> g.log_x & (g.threads_y - 1);
  p.z = t >> (g.log_x + g.log_y);
  const int64_t row = divide(tile, g.tiles_x);
  p.tile_x = static_cast<int>(tile - row * g.tiles_x) * g.tile_cols();
  p.tile_y = static_cast<int>(row) * g.block_rows();
  return p;
}

// The planes that a tile is loaded from, at one depth.
template <class T>
struct TileSource {
  const T* first;  // of the first plane
  int64_t stride;  // between planes
  int planes;      // at most threads_z; zeros stand for the rest
};

// Fills the tile. Rows are shared out among groups of threads_x threads; all loads are issued
// before the first is used. NOTE: columns more than kw / 2 beyond the last one are left as they
// are; no output reads them.
template <class T, int kH, int kW>
struct TileLoader {
  using C = Compute<T>;
  using Four = Vec<T, kStencilCols>;
  // Rows of a thread in flight: 4 and the halo's share, one round for a tile of 8 * 4 rows. Tiles
  // without a halo above have one row for each group of threads.
  static constexpr int kBatch = kH == 1 ? 1 : 5;
  const StencilShape& s;
  const StencilGrid& g;
  const StencilPlace& place;
  TileSource<T> from;
  bool aligned;

  __device__ __forceinline__ void operator()(C* tile) const {
    const int halo = g.threads_z * g.tile_rows * 2 * reach();
    const C edge = threadIdx.x < halo ? halo_value(threadIdx.x) : C(0);
    if (aligned) {
      load_vectors(tile);
    } else {
      load_scalars(tile);
    }
    if (threadIdx.x < halo) tile[halo_place(threadIdx.x)] = edge;
    for (int i = threadIdx.x + blockDim.x; i < halo; i += blockDim.x) {
      tile[halo_place(i)] = halo_value(i);
    }
  }

 private:
  __device__ __forceinline__ int reach() const { return (kW ? kW : s.kw) / 2; }
  __device__ __forceinline__ int rows() const { return g.threads_z * g.tile_rows; }

  // The first element of tile row r in memory, or null for zeros.
  __device__ __forceinline__ const T* row_of(int r) const {
    const int z = g.threads_z == 1 ? 0 : static_cast<int>(r * g.row_magic >> kRowMagicShift);
    const int source = g.map_y.source(place.tile_y + (r - z * g.tile_rows) - s.kh / 2);
    if (source < 0 || z >= from.planes) return nullptr;
    return from.first + z * from.stride + int64_t{source} * g.map_x.n;
  }

  // Calls load(u, row) for kBatch rows of the thread, then store(u, r); until all are done.
  template <class Load, class Store>
  __device__ __forceinline__ void for_each_row(Load&& load, Store&& store) const {
    const int groups = blockDim.x >> g.log_x;
    for (int first = threadIdx.x >> g.log_x; first < rows(); first += kBatch * groups) {
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int r = first + u * groups;
        load(u, r < rows() ? row_of(r) : nullptr);
      }
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        if (first + u * groups < rows()) store(u, tile_row(first + u * groups));
      }
    }
  }
  __device__ __forceinline__ int tile_row(int r) const { return r * g.pitch + g.pad; }

  // Rows that allow vectors: a thread's four columns are all there or all beyond the border.
  __device__ __forceinline__ void load_vectors(C* tile) const {
    const int column = place.tile_x + place.x * kStencilCols;
    if (column >= g.map_x.n) return;
    Four v[kBatch];
    for_each_row(
        [&](int u, const T* row) {
          v[u] = row ? *reinterpret_cast<const Four*>(row + column) : Four{T(0), T(0), T(0), T(0)};
        },
        [&](int u, int at) {
          Vec<C, kStencilCols> wide;
#pragma unroll
          for (int i = 0; i < kStencilCols; ++i) wide.value[i] = to_compute(v[u].value[i]);
          *reinterpret_cast<Vec<C, kStencilCols>*>(tile + at + place.x * kStencilCols) = wide;
        });
  }

  // Any rows: neighbouring threads read neighbouring columns.
  __device__ __forceinline__ void load_scalars(C* tile) const {
    int source[kStencilCols];
#pragma unroll
    for (int i = 0; i < kStencilCols; ++i) {
      source[i] = g.map_x.source(place.tile_x + place.x + i * g.threads_x);
    }
    T v[kBatch][kStencilCols];
    for_each_row(
        [&](int u, const T* row) {
#pragma unroll
          for (int i = 0; i < kStencilCols; ++i) {
            v[u][i] = row && source[i] >= 0 ? row[source[i]] : T(0);
          }
        },
        [&](int u, int at) {
#pragma unroll
          for (int i = 0; i < kStencilCols; ++i) {
            tile[at + place.x + i * g.threads_x] = to_compute(v[u][i]);
          }
        });
  }

  // Element i of the halo: columns on either side of row i / (2 reach). On the right they begin
  // after the last column that the body holds.
  __device__ __forceinline__ int halo_offset(int i) const {
    const int side = i % (2 * reach());
    if (side < reach()) return side - reach();
    const int left = g.map_x.n - place.tile_x;
    return (aligned && left < g.tile_cols() ? left : g.tile_cols()) + side - reach();
  }
  __device__ __forceinline__ int halo_place(int i) const {
    return tile_row(i / (2 * reach())) + halo_offset(i);
  }
  __device__ __forceinline__ C halo_value(int i) const {
    const T* row = row_of(i / (2 * reach()));
    const int source = g.map_x.source(place.tile_x + halo_offset(i));
    return row && source >= 0 ? to_compute(row[source]) : C(0);
  }
};

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
