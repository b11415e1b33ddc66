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
__global__ void __launch_bounds__(kColumnThreads, kColumnBlocks)
    depthwise_columns_weight_kernel(const __grid_constant__ ColumnWeightProblem problem) {
  constexpr int kTaps = kKernel * kKernel, kVec = 2;
  __shared__ float2 shared[kKernel * kColumnThreads];
  wait_for_predecessor();
  const DepthwiseWeightProblem& p = problem.base;
  const ColumnGrid& grid = problem.grid;
  const DepthwiseShape& s = p.shape;
  const int channels = static_cast<int>(s.channels);
  const int out_h = static_cast<int>(s.out_h), out_w = static_cast<int>(s.out_w);
  const int pad_h = static_cast<int>(s.pad_h), pad_w = static_cast<int>(s.pad_w);
  const ColumnThread thread(grid, kVec, channels);
  float sums[kTaps][kVec] = {};
  const unsigned items = thread.active ? grid.items : 0;
  for (unsigned item = thread.item; item < items; item += grid.step()) {
    const ColumnPlace at(grid, item, out_h);
    const ColumnImage<T, kVec, kKernel> image(p.x, at.n, static_cast<int>(s.h),
                                              static_cast<int>(s.w), at.column - pad_w, channels,
                                              thread.channel);
    const ColumnImage<T, kVec, 1> results(p.dy, at.n, out_h, out_w, at.column, channels,
                                          thread.channel);
    uint32_t next[kKernel], next_dy[1];
    image.load(at.row - pad_h, next);
    results.load(at.row, next_dy);
    float dy[kKernel][1][kVec] = {};  // of the row that meets tap row a
    const int end = at.end + kKernel - 1;
    for (int oy = at.row; oy < end; ++oy) {
      const int y = oy - pad_h;
#pragma unroll
      for (int a = kKernel - 1; a > 0; --a) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) dy[a][0][c] = dy[a - 1][0][c];
      }
      float v[kKernel][kVec];
      image.unpack(next, v);
      results.unpack(next_dy, dy[0]);
      image.load(y + 1, next);
      results.load(oy + 1, next_dy);
      const auto add = [&]<bool kAll>() {
#pragma unroll
        for (int a = 0; a < kKernel; ++a) {
          if (!kAll && (oy - a < at.row || oy - a >= at.end)) continue;
#pragma unroll
          for (int b = 0; b < kKernel; ++b) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) sums[a * kKernel + b][c] += v[b][c] * dy[a][0][c];
          }
        }
      };
      if (!image.has_row(y)) continue;
      if (oy - at.row >= kKernel - 1 && oy < at.end) {
        add.template operator()<true>();
      } else {
        add.template operator()<false>();
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
        const float (&sum)[kVec] = sums[a * kKernel + b];
        shared[thread.y * width + b * grid.threads_x + thread.x] = {sum[0], sum[1]};
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
