// Stencils of small planes: a block copies neighbouring planes as they lie in memory, whatever
// their width, and a thread makes eight neighbouring outputs of a row from the copy.
#pragma once

#include <algorithm>
#include <numeric>

#include "csrc/cuda/stencil/stencil.cuh"

namespace fusedops {

inline constexpr int kSmallStencilCols = 8;
inline constexpr int64_t kSmallStencilBytes = 16 << 10;  // of a block's planes
inline constexpr int64_t kSmallPlaneBytes = 2 << 10, kFewPlaneBytes = 8 << 10;

struct SmallStencilGrid {
  int planes = 0;  // of a block; 0: the planes are not small
  int chunks;      // of a row
  int elements;    // of the block's planes, whole vectors
  bool vectors;    // x and y allow them
};

// Blocks begin at multiples of 16 bytes where the tensors do, unless that left most of the GPU
// idle.
template <class T>
SmallStencilGrid small_stencil_grid(const StencilProblem<T>& p, int sm_count) {
  constexpr int kBlocksPerSm = 2;  // where there are no planes for more
  const StencilShape& s = p.shape;
  const int64_t bytes = s.plane_size() * sizeof(T);
  SmallStencilGrid g;
  const bool few = s.planes <= int64_t{kBlocksPerSm} * sm_count;
  if (s.d > 1 || s.kd > 1 || s.h == 1 || bytes > (few ? kFewPlaneBytes : kSmallPlaneBytes))
    return g;
  const int64_t step = 16 / std::gcd(int64_t{16}, bytes);
  const int64_t spread = ceil_div(s.planes, int64_t{kBlocksPerSm} * sm_count);
  const int64_t whole = spread >= step ? round_up(spread, step) : spread;
  const int64_t fits = kSmallStencilBytes / bytes;
  g.planes = static_cast<int>(std::min(fits >= step ? fits / step * step : fits, whole));
  g.chunks = static_cast<int>(ceil_div(s.w, kSmallStencilCols));
  g.elements = static_cast<int>(round_up(g.planes * s.plane_size(), 16 / sizeof(T)));
  g.vectors = (reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.y)) % 16 == 0 &&
              g.planes % step == 0;
  return g;
}

template <class T>
__device__ __forceinline__ void copy_elements(T* __restrict__ to, const T* __restrict__ from,
                                              int count, bool vectors) {
  constexpr int kVec = 16 / sizeof(T);
  const int whole = vectors ? count / kVec : 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < whole; i += kStencilThreads) {
    reinterpret_cast<Vec<T, kVec>*>(to)[i] = reinterpret_cast<const Vec<T, kVec>*>(from)[i];
  }
#pragma unroll 4
  for (int i = whole * kVec + static_cast<int>(threadIdx.x); i < count; i += kStencilThreads) {
    to[i] = from[i];
  }
}

template <class T, int kH, int kW>
__global__ void __launch_bounds__(kStencilThreads)
    stencil_small_kernel(const __grid_constant__ StencilProblem<T> p, const SmallStencilGrid g) {
  using C = Compute<T>;
  constexpr int kReach = kW / 2, kTaps = kH * kW;
  extern __shared__ __align__(16) unsigned char memory[];
  T* const in = reinterpret_cast<T*>(memory);
  T* const out = in + g.elements;
  wait_for_predecessor();
  const int h = p.grid.map_y.n, w = p.grid.map_x.n;
  const int64_t first = int64_t{blockIdx.x} * g.planes, left = p.shape.planes - first;
  const int planes = left < g.planes ? static_cast<int>(left) : g.planes;
  copy_elements(in, p.x + first * h * w, planes * h * w, g.vectors);
  const auto groups = static_cast<unsigned>(p.shape.groups);
  const auto group = static_cast<unsigned>(first - divide(first, groups) * groups);
  __syncthreads();

  const int items = h * g.chunks;
  for (int item = threadIdx.x; item < planes * items; item += kStencilThreads) {
    const int plane = item / items, y = (item - plane * items) / g.chunks;
    const int x = (item - plane * items - y * g.chunks) * kSmallStencilCols;
    const T* from = p.weight + int64_t{(group + plane) % groups} * kTaps;
    C weight[kTaps];
#pragma unroll
    for (int i = 0; i < kTaps; ++i) weight[i] = to_compute(from[p.adjoint ? kTaps - 1 - i : i]);
    int source[kSmallStencilCols + 2 * kReach];
#pragma unroll
    for (int c = 0; c < kSmallStencilCols + 2 * kReach; ++c) {
      source[c] = p.grid.map_x.source(x + c - kReach);
    }
    C sums[kSmallStencilCols] = {};
#pragma unroll
    for (int b = 0; b < kH; ++b) {
      const int row = p.grid.map_y.source(y + b - kH / 2);
      const T* const values = in + (plane * h + row) * w;
      C v[kSmallStencilCols + 2 * kReach];
#pragma unroll
      for (int c = 0; c < kSmallStencilCols + 2 * kReach; ++c) {
        v[c] = row >= 0 && source[c] >= 0 ? to_compute(values[source[c]]) : C(0);
      }
#pragma unroll
      for (int c = 0; c < kW; ++c) {
#pragma unroll
        for (int i = 0; i < kSmallStencilCols; ++i) sums[i] += weight[b * kW + c] * v[i + c];
      }
    }
    T* const to = out + (plane * h + y) * w + x;
#pragma unroll
    for (int i = 0; i < kSmallStencilCols; ++i) {
      if (x + i < w) to[i] = from_compute<T>(sums[i] * static_cast<C>(p.scale));
    }
  }
  __syncthreads();
  copy_elements(p.y + first * h * w, out, planes * h * w, g.vectors);
}

template <class T, int kH, int kW>
cudaError_t launch_stencil_small(const StencilProblem<T>& p, const SmallStencilGrid& g,
                                 cudaStream_t stream, bool overlap) {
  return launch_kernel(stencil_small_kernel<T, kH, kW>, dim3(ceil_div(p.shape.planes, g.planes)),
                       dim3(kStencilThreads), 2 * g.elements * sizeof(T), stream, overlap, p, g);
}

// Any stencil.
template <class T, int kH, int kW>
cudaError_t launch_any_stencil(const StencilProblem<T>& p, int sm_count, cudaStream_t stream,
                               bool overlap) {
  constexpr bool kSquare = kH == kW && kH > 0 && kH * kW <= 25;
  const bool folds = p.fold != Padding::kZeros;
  if constexpr (kSquare) {
    const SmallStencilGrid g = small_stencil_grid(p, sm_count);
    if (g.planes > 0 && !folds) return launch_stencil_small<T, kH, kW>(p, g, stream, overlap);
  }
  return launch_stencil<T, kH, kW>(p, stream, overlap);
}

}  // namespace fusedops
