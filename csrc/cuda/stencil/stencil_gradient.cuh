// dweight[k] = scale * sum over planes and places p of dy[p] x[p + k - taps / 2]. Deterministic:
// every block walks its tiles in a fixed order and reduces its threads' sums in a fixed order into
// a partial row, column_sum_kernel adds the partial rows in order. One slice needs no second
// kernel.
#pragma once

#include "csrc/common/device/column_sums.cuh"
#include "csrc/cuda/stencil/stencil.cuh"

namespace fusedops {

template <class T>
struct StencilWeightProblem {
  StencilShape shape;
  StencilGrid grid;     // over the planes / groups members of a group
  const T* dy;          // (planes, d, h, w)
  const T* x;           // like dy
  Compute<T>* partial;  // (slices, groups, kd, kh, kw), more than one slice only
  T* dweight;           // (groups, kd, kh, kw), one slice only
  double scale;
  bool aligned;    // rows of dy and x allow vectors
  int64_t slices;  // blocks that share a group's tiles
};

inline constexpr int kStencilMaxSums = 7 * 7;  // of a thread: the taps of StencilInstances

// Static shared memory of stencil_weight_kernel, at most.
template <class C>
inline constexpr int kStencilSumBytes = kStencilThreads / 32 * kStencilMaxSums * sizeof(C);

// Tap sums of the thread. kH = 0: the one tap at (b, c).
template <int kH, int kW, int kRows, class C>
__device__ __forceinline__ void add_products(int pitch, const C* at, int b, int c,
                                             const C (&grad)[kRows][kStencilCols],
                                             C (&sums)[kH ? kH * kW : 1]) {
  if constexpr (kH == 0) {
#pragma unroll
    for (int o = 0; o < kRows; ++o) {
#pragma unroll
      for (int i = 0; i < kStencilCols; ++i) sums[0] += grad[o][i] * at[(o + b) * pitch + i + c];
    }
  } else {
    constexpr int kReach = kW / 2;
#pragma unroll
    for (int row = 0; row < kRows + kH - 1; ++row) {
      C values[kStencilCols + 2 * kReach];
      load_row<kReach>(at + row * pitch, values);
#pragma unroll
      for (int tap = 0; tap < kH * kW; ++tap) {
        const int o = row - tap / kW;
        if (o < 0 || o >= kRows) continue;
#pragma unroll
        for (int i = 0; i < kStencilCols; ++i) sums[tap] += grad[o][i] * values[i + tap % kW];
      }
    }
  }
}

// One block: one slice of one group's tiles, all taps of one depth (kH = 0: one tap).
template <class T, int kH, int kW>
__global__ void __launch_bounds__(kStencilThreads)
    stencil_weight_kernel(const __grid_constant__ StencilWeightProblem<T> p) {
  using C = Compute<T>;
  constexpr int kRows = stencil_rows(kH), kSums = kH ? kH * kW : 1;
  constexpr int kWarps = kStencilThreads / 32;
  extern __shared__ __align__(32) unsigned char shared[];
  __shared__ C warp_sums[kWarps][kSums];
  static_assert(sizeof(warp_sums) <= kStencilSumBytes<C>);
  C* tile = reinterpret_cast<C*>(shared);
  wait_for_predecessor();
  const StencilShape& s = p.shape;
  const StencilGrid& g = p.grid;
  const int parts = kH ? s.kd : static_cast<int>(s.taps());  // blocks per slice and group
  const int64_t work = divide(blockIdx.x, p.slices), slice = blockIdx.x - work * p.slices;
  const int64_t group = divide(work, parts);
  const int part = static_cast<int>(work - group * parts);
  const int area = s.kh * s.kw;
  const int depth = kH ? part : part / area, tap = kH ? 0 : part % area;
  const int64_t members = s.planes / s.groups, tiles = g.tiles_x * g.tiles_y;

  C sums[kSums] = {};
  for (int64_t item = slice; item < g.plane_blocks * s.d * tiles; item += p.slices) {
    const int64_t slab = divide(item, tiles), block = divide(slab, s.d), z = slab - block * s.d;
    const int source =
        static_cast<int>(source_index(z + depth - s.kd / 2, s.d, s.kd / 2, s.padding));
    if (source < 0) continue;
    const StencilPlace place = stencil_place(g, item - slab * tiles);
    const int64_t member = block * g.threads_z + place.z;
    const int column = place.tile_x + place.x * kStencilCols;
    const bool exists = threadIdx.x < g.threads() && member < members && column < g.map_x.n;
    C grad[kRows][kStencilCols];
#pragma unroll
    for (int o = 0; o < kRows; ++o) {
      const int y = place.tile_y + place.y * kRows + o;
      Vec<T, kStencilCols> v{T(0), T(0), T(0), T(0)};
      if (exists && y < s.h) {
        const T* row = p.dy + (member * s.groups + group) * s.plane_size() + (z * s.h + y) * s.w;
        const int end = g.map_x.n - column;
        if (p.aligned && end >= kStencilCols) {
          v = *reinterpret_cast<const Vec<T, kStencilCols>*>(row + column);
        } else {
#pragma unroll
          for (int i = 0; i < kStencilCols; ++i) v.value[i] = i < end ? row[column + i] : T(0);
        }
      }
#pragma unroll
      for (int i = 0; i < kStencilCols; ++i) grad[o][i] = to_compute(v.value[i]);
    }
    __syncthreads();
    const int64_t first = block * g.threads_z;
    const int planes =
        members - first < g.threads_z ? static_cast<int>(members - first) : g.threads_z;
    const T* from = p.x + (first * s.groups + group) * s.plane_size() + source * s.h * s.w;
    TileLoader<T, kH, kW>{s, g, place, {from, s.groups * s.plane_size(), planes}, p.aligned}(tile);
    __syncthreads();
    if (!exists) continue;
    const C* at =
        tile + (place.z * g.tile_rows + place.y * kRows) * g.pitch + g.pad + place.x * kStencilCols;
    add_products<kH, kW, kRows>(g.pitch, at, tap / s.kw, tap % s.kw - s.kw / 2, grad, sums);
  }

  // Threads of a warp, then warps
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) sums[i] += __shfl_xor_sync(~0u, sums[i], lane);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32][i] = sums[i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kSums; i += blockDim.x) {
    C total = 0;
    for (int w = 0; w < blockDim.x / 32; ++w) total += warp_sums[w][i];
    total *= static_cast<C>(p.scale);
    const int64_t at = group * s.taps() + depth * area + tap + i;
    if (p.slices == 1) {
      p.dweight[at] = from_compute<T>(total);
    } else {
      p.partial[slice * s.groups * s.taps() + at] = total;
    }
  }
}

// Blocks that share a group's tiles: as many as fill the GPU.
inline int64_t stencil_slices(const StencilShape& s, const StencilGrid& g, int sm_count) {
  const int64_t parts = s.groups * (stencil_instance(s) ? s.kd : s.taps());
  const int64_t items = g.plane_blocks * s.d * g.tiles_x * g.tiles_y;
  return std::min(items, ceil_div(int64_t{sm_count} * 8, parts));
}

template <class T, int kH, int kW>
cudaError_t launch_stencil_weight(const StencilWeightProblem<T>& p, cudaStream_t stream,
                                  bool overlap) {
  const int64_t parts = kH ? p.shape.kd : p.shape.taps();
  const dim3 block(std::max(32, p.grid.threads()));  // whole warps reduce
  return launch_kernel(stencil_weight_kernel<T, kH, kW>, dim3(p.shape.groups * parts * p.slices),
                       block, p.grid.shared_elements() * sizeof(Compute<T>), stream, overlap, p);
}

}  // namespace fusedops
