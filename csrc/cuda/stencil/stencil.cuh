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
  bool adjoint;  // the gradient: taps reversed
  Padding fold;  // adjoint of a padding that repeats elements: which; else kZeros
};

// Positions first ... last beyond one border of a row, all of which stand for the same element.
struct BorderCopies {
  int first = 0, last = -1;
};

// Those of element i, below the first element or above the last of n.
__device__ __forceinline__ BorderCopies border_copies(int i, int n, int r, Padding padding,
                                                      bool above) {
  const int distance = above ? n - 1 - i : i;
  const bool reflects = padding == Padding::kReflect;
  if (reflects ? distance < 1 || distance > r : distance > 0) return {};
  if (reflects) {
    const int q = above ? n - 1 + distance : -distance;
    return {q, q};
  }
  return above ? BorderCopies{n, n + r - 1} : BorderCopies{-r, -1};
}
__device__ __forceinline__ bool has_copies(int i, int n, int r, Padding padding) {
  const int distance = i < n - 1 - i ? i : n - 1 - i, other = n - 1 - distance;
  if (padding != Padding::kReflect) return r > 0 && distance == 0;
  return (distance > 0 && distance <= r) || (other > 0 && other <= r);
}

// Calls fn(position) for element i itself (self) and for its copies beyond the borders.
template <class Fn>
__device__ __forceinline__ void for_each_copy(int i, int n, int r, Padding padding, bool self,
                                              Fn&& fn) {
  for (int which = self ? 0 : 1; which < 3; ++which) {
    const BorderCopies copies =
        which == 0 ? BorderCopies{i, i} : border_copies(i, n, r, padding, which == 2);
    for (int q = copies.first; q <= copies.last; ++q) fn(q);
  }
}

// What the copies of element (y, x) beyond the border add to its gradient, from one depth of dy:
// element (row, column) of the plane is tile[origin + row * pitch + column]. kH = 0: taps of any
// size, at run time. NOTE: many taps at once were slower than one after the other.
template <int kH, int kW, class T>
__device__ __forceinline__ Compute<T> folded_terms(const StencilShape& s, Padding fold,
                                                   const Compute<T>* tile, int origin, int pitch,
                                                   const T* weight, int y, int x) {
  using C = Compute<T>;
  constexpr bool kAtOnce = kH > 0 && kH * kW <= 9;  // taps whose loads are all on their way
  const int h = static_cast<int>(s.h), w = static_cast<int>(s.w);
  const int ry = (kH ? kH : s.kh) / 2, rx = (kH ? kW : s.kw) / 2;
  C sum = 0;
  for_each_copy(y, h, ry, fold, true, [&](int qy) {
    for_each_copy(x, w, rx, fold, qy != y, [&](int qx) {
      // Tap (b, c) of the output at (qy + ry - b, qx + rx - c) has read the copy.
      if constexpr (kAtOnce) {
#pragma unroll
        for (int b = 0; b < kH; ++b) {
          const int row = qy + ry - b;
#pragma unroll
          for (int c = 0; c < kW; ++c) {
            const int column = qx + rx - c;
            if (row >= 0 && row < h && column >= 0 && column < w) {
              sum += to_compute(weight[b * kW + c]) * tile[origin + row * pitch + column];
            }
          }
        }
      } else {
        const int last_b = min(2 * ry, qy + ry), last_c = min(2 * rx, qx + rx);
        for (int b = max(0, qy + ry - h + 1); b <= last_b; ++b) {
          const C* row = tile + origin + (qy + ry - b) * pitch + qx + rx;
          for (int c = max(0, qx + rx - w + 1); c <= last_c; ++c) {
            sum += to_compute(weight[b * s.kw + c]) * row[-c];
          }
        }
      }
    });
  });
  return sum;
}

// A bit for each of the thread's outputs that is there and has copies.
template <int kRows>
__device__ __forceinline__ unsigned outputs_with_copies(const StencilShape& s, const StencilGrid& g,
                                                        const StencilPlace& place, Padding fold) {
  const int h = g.map_y.n, w = g.map_x.n;
  unsigned columns = 0, present = 0, outputs = 0;
#pragma unroll
  for (int i = 0; i < kStencilCols; ++i) {
    const int x = static_cast<int>(place.tile_x) + place.x * kStencilCols + i;
    if (x < w) present |= 1u << i;
    if (x < w && has_copies(x, w, s.kw / 2, fold)) columns |= 1u << i;
  }
#pragma unroll
  for (int o = 0; o < kRows; ++o) {
    const int y = static_cast<int>(place.tile_y) + place.y * kRows + o;
    const bool edge = has_copies(y, h, s.kh / 2, fold);
    if (y < h) outputs |= (edge ? present : columns) << o * kStencilCols;
  }
  return outputs;
}

// Adds those terms to `outputs` of the thread.
template <int kH, int kW, class T, int kRows>
__device__ __forceinline__ void add_folded(const StencilProblem<T>& p, const StencilPlace& place,
                                           unsigned outputs, const Compute<T>* tile,
                                           const T* weight,
                                           Compute<T> (&sums)[kRows][kStencilCols]) {
  const StencilShape& s = p.shape;
  const StencilGrid& g = p.grid;
  const int tile_x = static_cast<int>(place.tile_x), tile_y = static_cast<int>(place.tile_y);
  const int origin = (place.z * g.tile_rows + s.kh / 2 - tile_y) * g.pitch + g.pad - tile_x;
  // NOTE: one copy of the code for all outputs, or it would take registers from the taps.
#pragma unroll 1
  for (unsigned left = outputs; left != 0; left &= left - 1) {
    const int output = __ffs(static_cast<int>(left)) - 1;
    const int y = tile_y + place.y * kRows + output / kStencilCols;
    const int x = tile_x + place.x * kStencilCols + output % kStencilCols;
    const auto more = folded_terms<kH, kW>(s, p.fold, tile, origin, g.pitch, weight, y, x);
#pragma unroll
    for (int i = 0; i < kRows * kStencilCols; ++i) {
      if (i == output) sums[i / kStencilCols][i % kStencilCols] += more;
    }
  }
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

template <class T, int kRows>
__device__ __forceinline__ void store_outputs(const StencilProblem<T>& p, const StencilPlace& place,
                                              int64_t plane, int64_t z,
                                              const Compute<T> (&sums)[kRows][kStencilCols]) {
  const StencilShape& s = p.shape;
  const int x = place.tile_x + place.x * kStencilCols;
  const int w = p.grid.map_x.n, h = p.grid.map_y.n;
  if (x >= w) return;
  T* to = p.y + plane * s.plane_size() + (z * h + place.tile_y + place.y * kRows) * w + x;
#pragma unroll
  for (int o = 0; o < kRows; ++o) {
    const int y = place.tile_y + place.y * kRows + o;
    if (y >= h) return;
    Vec<T, kStencilCols> v;
#pragma unroll
    for (int i = 0; i < kStencilCols; ++i) {
      v.value[i] = from_compute<T>(sums[o][i] * static_cast<Compute<T>>(p.scale));
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
template <class T, int kH, int kW>
inline constexpr int kStencilBlocksPerSm = sizeof(T) == 8 || kH * kW > 25 ? 2
                                           : kH == 1                      ? 4
                                                                          : 3;

// One block: one depth of a tile in each of threads_z planes. kFold: an adjoint whose padding
// folds back at the border.
template <class T, int kH, int kW, bool kFold>
__global__ void __launch_bounds__(kStencilThreads, kStencilBlocksPerSm<T, kH, kW>)
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
  const unsigned outputs = kFold ? outputs_with_copies<kRows>(s, g, place, p.fold) : 0;
  for (int a = 0; a < s.kd; ++a) {
    const int slice = static_cast<int>(source_index(z + a - s.kd / 2, s.d, s.kd / 2, s.padding));
    if (slice < 0) continue;
    __syncthreads();
    TileLoader<T, kH, kW>{
        s, g, place, {from + slice * s.h * s.w, s.plane_size(), planes}, p.aligned}(tile);
    __syncthreads();
    if (!exists) continue;
    const int area = s.kh * s.kw;
    const C* at =
        tile + (place.z * g.tile_rows + place.y * kRows) * g.pitch + g.pad + place.x * kStencilCols;
    if constexpr (kFold) {
      // Depth `slice` of dy has read depth z by each tap whose source it is.
      for (int depth = 0; depth < s.kd; ++depth) {
        if (source_index(slice + depth - s.kd / 2, s.d, s.kd / 2, p.fold) != z) continue;
        const T* taps = weight + depth * area;
        add_taps<kH, kW>(
            s, g.pitch, at, [&](int tap) { return to_compute(taps[area - 1 - tap]); }, sums);
        add_folded<kH, kW>(p, place, outputs, tile, taps, sums);
      }
    } else {
      add_taps<kH, kW>(
          s, g.pitch, at,
          [&](int tap) {
            const int i = a * area + tap;
            return to_compute(weight[p.adjoint ? s.kd * area - 1 - i : i]);
          },
          sums);
    }
  }
  if (exists) store_outputs(p, place, plane, z, sums);
}

template <class T, int kH, int kW>
cudaError_t launch_stencil(const StencilProblem<T>& p, cudaStream_t stream, bool overlap) {
  const StencilGrid& g = p.grid;
  const bool folds = p.fold != Padding::kZeros;
  return launch_kernel(folds ? stencil_kernel<T, kH, kW, true> : stencil_kernel<T, kH, kW, false>,
                       dim3(g.plane_blocks * p.shape.d * g.tiles_x * g.tiles_y), dim3(g.threads()),
                       g.shared_elements() * sizeof(Compute<T>), stream, overlap, p);
}

}  // namespace fusedops
