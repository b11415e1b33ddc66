// y[p] = scale * sum over taps k of weight[k] x[p + k - taps / 2]: tiles with halos in shared
// memory, register sliding down the rows. Also the input's gradient, which is the same sum with the
// taps reversed, plus what the padding folds back at the border.
#pragma once

#include "csrc/cuda/stencil/stencil_tile.cuh"

namespace fusedops {

template <class T>
struct StencilProblem {
  StencilShape shape;
  StencilGrid grid;
  const T* x;       // (planes, d, h, w)
  const T* weight;  // (groups, kd, kh, kw)
  T* y;             // like x
  double scale;
  bool aligned;  // rows of x and y allow vectors
  bool adjoint;  // the gradient: taps reversed, zeros beyond x
  Padding fold;  // adjoint: the padding of the forward
};

// The positions of the padded row that stand for element i: itself (-1), then the halo's 2 r ones.
__device__ __forceinline__ int64_t padded_position(int j, int64_t i, int64_t n, int r) {
  return j < 0 ? i : j < r ? j - r : n + j - r;
}
__device__ __forceinline__ bool stands_for(int j, int64_t i, int64_t n, int r, Padding padding) {
  return j < 0 || source_index(padded_position(j, i, n, r), n, r, padding) == i;
}

// What the halo's copies of element (z, y, x) add to its gradient. NOTE: only elements near a
// border get here, so plain loops over global memory are fine.
template <class T>
__device__ __noinline__ Compute<T> folded_terms(const StencilProblem<T>& p, const T* dy,
                                                const T* weight, int64_t z, int64_t y, int64_t x) {
  using C = Compute<T>;
  const StencilShape& s = p.shape;
  const int rz = s.kd / 2, ry = s.kh / 2, rx = s.kw / 2;
  C sum = 0;
  for (int jz = -1; jz < 2 * rz; ++jz) {
    if (!stands_for(jz, z, s.d, rz, p.fold)) continue;
    for (int jy = -1; jy < 2 * ry; ++jy) {
      if (!stands_for(jy, y, s.h, ry, p.fold)) continue;
      for (int jx = -1; jx < 2 * rx; ++jx) {
        if (!stands_for(jx, x, s.w, rx, p.fold) || (jz < 0 && jy < 0 && jx < 0)) continue;
        const int64_t qz = padded_position(jz, z, s.d, rz), qy = padded_position(jy, y, s.h, ry),
                      qx = padded_position(jx, x, s.w, rx);
        int tap = 0;
        for (int a = 0; a < s.kd; ++a) {
          for (int b = 0; b < s.kh; ++b) {
            for (int c = 0; c < s.kw; ++c, ++tap) {
              const int64_t oz = qz + rz - a, oy = qy + ry - b, ox = qx + rx - c;
              if (oz < 0 || oz >= s.d || oy < 0 || oy >= s.h || ox < 0 || ox >= s.w) continue;
              sum += to_compute(weight[tap]) * to_compute(dy[(oz * s.h + oy) * s.w + ox]);
            }
          }
        }
      }
    }
  }
  return sum;
}

__device__ __forceinline__ bool near_border(int64_t i, int64_t n, int r) {
  return r > 0 && (i <= r || i >= n - 1 - r);
}

// Adds the taps of one depth, weight(0) ... weight(kh * kw - 1), to the thread's outputs. kH = 0:
// any size, at run time.
template <int kH, int kW, int kRows, class C, class WeightOf>
__device__ __forceinline__ void add_taps(const StencilShape& s, int pitch, const C* at,
                                         WeightOf&& weight, C (&sums)[kRows][kStencilCols]) {
  if constexpr (kH == 0) {
    for (int tap = 0; tap < s.kh * s.kw; ++tap) {
      const C w = weight(tap);
      const C* from = at + tap / s.kw * pitch + tap % s.kw - s.kw / 2;
#pragma unroll
      for (int o = 0; o < kRows; ++o) {
#pragma unroll
        for (int i = 0; i < kStencilCols; ++i) sums[o][i] += w * from[o * pitch + i];
      }
    }
  } else {
    constexpr int kReach = kW / 2;
    C w[kH * kW];
#pragma unroll
    for (int tap = 0; tap < kH * kW; ++tap) w[tap] = weight(tap);
#pragma unroll
    for (int row = 0; row < kRows + kH - 1; ++row) {
      C values[kStencilCols + 2 * kReach];
      load_row<kReach>(at + row * pitch, values);
#pragma unroll
      for (int b = 0; b < kH; ++b) {
        const int o = row - b;
        if (o < 0 || o >= kRows) continue;
#pragma unroll
        for (int c = 0; c < kW; ++c) {
#pragma unroll
          for (int i = 0; i < kStencilCols; ++i) sums[o][i] += w[b * kW + c] * values[i + c];
        }
      }
    }
  }
}

template <class T, bool kFold, int kRows>
__device__ __forceinline__ void store_outputs(const StencilProblem<T>& p, const StencilPlace& place,
                                              int64_t plane, int64_t z, const T* weight,
                                              Compute<T> (&sums)[kRows][kStencilCols]) {
  const StencilShape& s = p.shape;
  const int x = place.tile_x + place.x * kStencilCols;
  const int w = p.grid.map_x.n, h = p.grid.map_y.n;
  if (x >= w) return;
  T* to = p.y + plane * s.plane_size() + (z * h + place.tile_y + place.y * kRows) * w + x;
#pragma unroll
  for (int o = 0; o < kRows; ++o) {
    const int y = place.tile_y + place.y * kRows + o;
    if (y >= h) return;
    const bool edge = near_border(z, s.d, s.kd / 2) || near_border(y, s.h, s.kh / 2);
    Vec<T, kStencilCols> v;
#pragma unroll
    for (int i = 0; i < kStencilCols; ++i) {
      Compute<T> sum = sums[o][i];
      if constexpr (kFold) {
        if (x + i < w && (edge || near_border(x + i, s.w, s.kw / 2))) {
          sum += folded_terms(p, p.x + plane * s.plane_size(), weight, z, y, x + i);
        }
      }
      v.value[i] = from_compute<T>(sum * static_cast<Compute<T>>(p.scale));
    }
    if (p.aligned) {
      *reinterpret_cast<Vec<T, kStencilCols>*>(to) = v;
    } else {
#pragma unroll
      for (int i = 0; i < kStencilCols; ++i) {
        if (x + i < w) to[i] = v.value[i];
      }
    }
    to += w;
  }
}

// Blocks per SM that hide the latency of the loads, where the taps leave registers for them.
template <class T, int kTaps>
inline constexpr int kStencilBlocksPerSm = sizeof(T) == 8 || kTaps > 25 ? 2 : 3;

// One block: one depth of a tile in each of threads_z planes. kFold: an adjoint whose padding
// folds.
template <class T, int kH, int kW, bool kFold>
__global__ void __launch_bounds__(kStencilThreads, kStencilBlocksPerSm<T, kH * kW>)
    stencil_kernel(const __grid_constant__ StencilProblem<T> p) {
  using C = Compute<T>;
  constexpr int kRows = stencil_rows(kH);
  extern __shared__ __align__(32) unsigned char shared[];
  C* tile = reinterpret_cast<C*>(shared);
  wait_for_predecessor();
  const StencilShape& s = p.shape;
  const StencilGrid& g = p.grid;
  const int64_t tiles = g.tiles_x * g.tiles_y;
  const int64_t slab = divide(blockIdx.x, tiles);
  const int64_t plane_block = divide(slab, s.d), z = slab - plane_block * s.d;
  const StencilPlace place = stencil_place(g, blockIdx.x - slab * tiles);
  const int64_t first = plane_block * g.threads_z, plane = first + place.z;
  const bool exists = threadIdx.x < g.threads() && plane < s.planes;
  const T* weight = p.weight;
  if (exists && s.groups > 1) weight += (plane - divide(plane, s.groups) * s.groups) * s.taps();

  const T* from = p.x + first * s.plane_size();
  const int planes =
      s.planes - first < g.threads_z ? static_cast<int>(s.planes - first) : g.threads_z;

  C sums[kRows][kStencilCols] = {};
  for (int a = 0; a < s.kd; ++a) {
    const int slice = static_cast<int>(source_index(z + a - s.kd / 2, s.d, s.kd / 2, s.padding));
    if (slice < 0) continue;
    __syncthreads();
    TileLoader<T, kW>{
        s, g, place, {from + slice * s.h * s.w, s.plane_size(), planes}, p.aligned}(tile);
    __syncthreads();
    if (!exists) continue;
    const int area = s.kh * s.kw;
    const C* at =
        tile + (place.z * g.tile_rows + place.y * kRows) * g.pitch + g.pad + place.x * kStencilCols;
    add_taps<kH, kW>(
        s, g.pitch, at,
        [&](int tap) {
          const int i = a * area + tap;
          return to_compute(weight[p.adjoint ? s.kd * area - 1 - i : i]);
        },
        sums);
  }
  if (exists) store_outputs<T, kFold>(p, place, plane, z, weight, sums);
}

template <class T, int kH, int kW>
cudaError_t launch_stencil(const StencilProblem<T>& p, cudaStream_t stream, bool overlap) {
  const StencilGrid& g = p.grid;
  const bool folds = p.adjoint && p.fold != Padding::kZeros;
  return launch_kernel(folds ? stencil_kernel<T, kH, kW, true> : stencil_kernel<T, kH, kW, false>,
                       dim3(g.plane_blocks * p.shape.d * g.tiles_x * g.tiles_y), dim3(g.threads()),
                       g.shared_elements() * sizeof(Compute<T>), stream, overlap, p);
}

}  // namespace fusedops
