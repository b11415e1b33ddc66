// The gradient of a depthwise convolution's weight: sums over all results of dy x, for each tap.
//
// A thread has two neighbouring channels and walks tiles of results with all taps' sums in its
// registers; blocks write what they summed, and a second kernel joins them in a fixed order.
#pragma once

#include "csrc/cuda/conv/depthwise.cuh"
#include "csrc/cuda/conv/join.cuh"

namespace fusedops {

inline constexpr int kRowsOfThreads = kDepthwiseThreads / 32;

// Rows of results in a tile: sums of 25 taps leave registers for two.
constexpr int weight_tile_rows(int kernel) { return kernel > 3 ? 2 : kDepthwiseTile; }

struct DepthwiseWeightProblem {
  DepthwiseShape shape;
  DepthwiseGrid grid;
  const void* dy;  // (n, out_h, out_w, channels)
  const void* x;   // (n, h, w, channels)
  void* partial;   // (row_blocks, taps, channels) of Compute
};

template <class T, int kKernel, int kStride>
__global__ void __launch_bounds__(kDepthwiseThreads, kDepthwiseBlocks)
    depthwise_weight_kernel(const __grid_constant__ DepthwiseWeightProblem p) {
  constexpr int kRows = weight_tile_rows(kKernel), kColumns = kDepthwiseTile;
  constexpr int kTaps = kKernel * kKernel;
  using Vertical = TileAxis<kKernel, kStride, false, kRows>;
  using Across = TileAxis<kKernel, kStride, false, kColumns>;
  __shared__ float2 shared[kKernel][kDepthwiseThreads];
  wait_for_predecessor();
  const DepthwiseShape& s = p.shape;
  const DepthwisePlace at(p.grid);
  const int channels = p.grid.channels;
  const int h = static_cast<int>(s.h), w = static_cast<int>(s.w);
  const int out_h = static_cast<int>(s.out_h), out_w = static_cast<int>(s.out_w);
  float2 sums[kTaps] = {};
  const unsigned end = at.active ? p.grid.tiles : 0;
  for (unsigned tile = at.row_block * p.grid.threads_y + at.ty; tile < end; tile += p.grid.step()) {
    const TilePlace place(p.grid, tile);
    const int oy = place.row * kRows, ox = place.column * kColumns;
    if (tile + p.grid.step() < end) {
      const TilePlace next(p.grid, tile + p.grid.step());
      prefetch_places<kRows, kColumns>(static_cast<const T*>(p.dy) + at.col, next.n,
                                       next.row * kRows, next.column * kColumns, out_h, out_w,
                                       channels);
      prefetch_places<Vertical::kOwn, Across::kOwn>(
          static_cast<const T*>(p.x) + at.col, next.n,
          static_cast<int>(Vertical::first_input(next.row, s.pad_h)),
          static_cast<int>(Across::first_input(next.column, s.pad_w)), h, w, channels);
    }
    float2 dy[kRows][kColumns];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t from = ((int64_t{place.n} * out_h + oy + r) * out_w + ox) * channels;
      load_pairs<T>(static_cast<const T*>(p.dy) + at.col, from, oy + r < out_h, ox, out_w, channels,
                    dy[r]);
    }
    const int iy = static_cast<int>(Vertical::first_input(place.row, s.pad_h));
    const int ix = static_cast<int>(Across::first_input(place.column, s.pad_w));
#pragma unroll
    for (int r = 0; r < Vertical::kInputs; ++r) {
      const bool inside = static_cast<unsigned>(iy + r) < static_cast<unsigned>(h);
      const int64_t from = ((int64_t{place.n} * h + iy + r) * w + ix) * channels;
      float2 v[Across::kInputs];
      load_pairs<T>(static_cast<const T*>(p.x) + at.col, from, inside, ix, w, channels, v);
#pragma unroll
      for (int a = 0; a < kRows; ++a) {
        if (!Vertical::takes(a, r)) continue;
#pragma unroll
        for (int b = 0; b < kColumns; ++b) {
#pragma unroll
          for (int c = 0; c < Across::kInputs; ++c) {
            if (!Across::takes(b, c)) continue;
            float2& sum = sums[Vertical::tap(a, r) * kKernel + Across::tap(b, c)];
            sum.x += v[c].x * dy[a][b].x;
            sum.y += v[c].y * dy[a][b].y;
          }
        }
      }
    }
  }

  // The block's sums, a row of taps at a time
  const int width = p.grid.threads_x;
#pragma unroll
  for (int a = 0; a < kKernel; ++a) {
    __syncthreads();
    if (at.ty < p.grid.threads_y) {
#pragma unroll
      for (int b = 0; b < kKernel; ++b) {
        shared[b][at.ty * width + at.tx] = sums[a * kKernel + b];
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kKernel * width; i += kDepthwiseThreads) {
      const int b = i / width, pair = i % width, channel = at.first + pair * 2;
      if (channel >= channels) continue;
      double first = 0, second = 0;
      for (int y = 0; y < p.grid.threads_y; ++y) {
        first += shared[b][y * width + pair].x;
        second += shared[b][y * width + pair].y;
      }
      float* const to = static_cast<float*>(p.partial) +
                        (int64_t{at.row_block} * kTaps + a * kKernel + b) * channels + channel;
      to[0] = static_cast<float>(first);
      to[1] = static_cast<float>(second);
    }
  }
}

// Any kernel, stride and dtype: blocks of 32 channels and 8 rows of threads, one tap each.
template <class T>
__global__ void __launch_bounds__(kDepthwiseThreads)
    depthwise_weight_any_kernel(const __grid_constant__ DepthwiseWeightProblem p) {
  using C = Compute<T>;
  __shared__ C shared[kDepthwiseThreads];
  wait_for_predecessor();
  const DepthwiseShape& s = p.shape;
  const int64_t col_blocks = ceil_div(s.channels, int64_t{32});
  const int64_t channel = blockIdx.x % col_blocks * 32 + threadIdx.x % 32;
  const int64_t tap = blockIdx.x / col_blocks % s.taps();
  const int64_t row_block = blockIdx.x / col_blocks / s.taps();
  const int64_t places = s.n * s.out_h * s.out_w;
  const int64_t step = int64_t{p.grid.row_blocks} * kRowsOfThreads;
  C sum = 0;
  for (int64_t i = row_block * kRowsOfThreads + threadIdx.x / 32;
       i < places && channel < s.channels; i += step) {
    const int64_t ox = i % s.out_w, oy = i / s.out_w % s.out_h, n = i / s.out_w / s.out_h;
    const int64_t iy = oy * s.stride_h - s.pad_h + tap / s.kw;
    const int64_t ix = ox * s.stride_w - s.pad_w + tap % s.kw;
    if (iy < 0 || iy >= s.h || ix < 0 || ix >= s.w) continue;
    sum +=
        to_compute(static_cast<const T*>(p.dy)[i * s.channels + channel]) *
        to_compute(static_cast<const T*>(p.x)[((n * s.h + iy) * s.w + ix) * s.channels + channel]);
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= 32 || channel >= s.channels) return;
  double total = 0;
  for (int y = 0; y < kRowsOfThreads; ++y) total += shared[y * 32 + threadIdx.x];
  static_cast<C*>(p.partial)[(row_block * s.taps() + tap) * s.channels + channel] =
      static_cast<C>(total);
}

}  // namespace fusedops
