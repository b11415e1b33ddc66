// The gradient of a depthwise convolution's weight down columns of results, stride 1.
//
// Threads and walks are those of depthwise_columns.cuh. A thread keeps the sums of all taps of its
// two channels, and the values of dy that a row of the image meets: the last kKernel ones of its
// column. Blocks write what they summed, and a second kernel joins them in a fixed order.
#pragma once

#include "csrc/cuda/conv/depthwise_columns.cuh"
#include "csrc/cuda/conv/depthwise_weight.cuh"

namespace fusedops {

struct ColumnWeightProblem {
  DepthwiseWeightProblem base;  // its grid is not used
  ColumnGrid grid;
};

template <class T, int kKernel>
__global__ void __launch_bounds__(kColumnThreads, column_blocks(kKernel))
    depthwise_columns_weight_kernel(const __grid_constant__ ColumnWeightProblem problem) {
  constexpr int kTaps = kKernel * kKernel;
  __shared__ float2 shared[kKernel * kColumnThreads];
  wait_for_predecessor();
  const DepthwiseWeightProblem& p = problem.base;
  const ColumnGrid& grid = problem.grid;
  const DepthwiseShape& s = p.shape;
  const int channels = static_cast<int>(s.channels);
  const int h = static_cast<int>(s.h), w = static_cast<int>(s.w);
  const int out_h = static_cast<int>(s.out_h), out_w = static_cast<int>(s.out_w);
  const int pad_h = static_cast<int>(s.pad_h), pad_w = static_cast<int>(s.pad_w);
  const ColumnThread thread(grid, channels);
  float2 sums[kTaps] = {};
  const unsigned items = thread.active ? grid.items : 0;
  for (unsigned item = thread.item; item < items; item += grid.step()) {
    const ColumnPlace at(grid, item, out_h);
    const ColumnImage<T, kKernel> image(p.x, at.n, h, w, at.column - pad_w, channels,
                                        thread.channel);
    const ColumnImage<T, 1> results(p.dy, at.n, at.end, out_w, at.column, channels, thread.channel);
    uint32_t next[kKernel], next_dy[1];
    image.load(at.row - pad_h, next);
    results.load(at.row, next_dy);
#pragma unroll
    for (int r = 1; r < kColumnRowsAhead; ++r) {
      image.template prefetch<1>(at.row - pad_h + r, pad_w);
      results.template prefetch<1>(at.row + r, 0);
    }
    float2 dy[kKernel] = {};  // of the row that meets tap row a
    const int end = at.end + kKernel - 1;
    for (int oy = at.row; oy < end; ++oy) {
      uint32_t row[kKernel];
#pragma unroll
      for (int c = 0; c < kKernel; ++c) row[c] = next[c];
#pragma unroll
      for (int a = kKernel - 1; a > 0; --a) dy[a] = dy[a - 1];
      dy[0] = unpack_pair<T>(next_dy[0]);
      const int y = oy - pad_h;
      if (oy + 1 < end) {
        image.load(y + 1, next);
        results.load(oy + 1, next_dy);
      }
      image.template prefetch<1>(y + kColumnRowsAhead, pad_w);
      results.template prefetch<1>(oy + kColumnRowsAhead, 0);
      if (!image.has(y)) continue;
      float2 v[kKernel];
#pragma unroll
      for (int c = 0; c < kKernel; ++c) v[c] = unpack_pair<T>(row[c]);
#pragma unroll
      for (int a = 0; a < kKernel; ++a) {
        if (oy - a < at.row || oy - a >= at.end) continue;
#pragma unroll
        for (int b = 0; b < kKernel; ++b) {
          sums[a * kKernel + b].x += v[b].x * dy[a].x;
          sums[a * kKernel + b].y += v[b].y * dy[a].y;
        }
      }
    }
  }

  // The block's sums, a row of taps at a time: (threads_y, kKernel, threads_x)
  const int width = kKernel * grid.threads_x;
#pragma unroll
  for (int a = 0; a < kKernel; ++a) {
    __syncthreads();
    if (thread.active) {
#pragma unroll
      for (int b = 0; b < kKernel; ++b) {
        shared[thread.y * width + b * grid.threads_x + thread.x] = sums[a * kKernel + b];
      }
    }
    __syncthreads();
    const int first = static_cast<int>(blockIdx.x % grid.chunks) * grid.threads_x * 2;
    for (int i = threadIdx.x; i < width; i += kColumnThreads) {
      const int b = i / grid.threads_x, channel = first + i % grid.threads_x * 2;
      if (channel >= channels) continue;
      float2 sum = {};
      for (int y = 0; y < grid.threads_y; ++y) {
        sum.x += shared[y * width + i].x;
        sum.y += shared[y * width + i].y;
      }
      const unsigned block = blockIdx.x / grid.chunks;
      *reinterpret_cast<float2*>(static_cast<float*>(p.partial) +
                                 (int64_t{block} * kTaps + a * kKernel + b) * channels + channel) =
          sum;
    }
  }
}

}  // namespace fusedops
