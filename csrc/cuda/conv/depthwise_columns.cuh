// Depthwise convolutions of (N, H, W, C), norm, residual and activation behind, from registers, and
// adjoints of those of stride 1.
//
// A thread has two channels of some columns of results beside each other and walks down them: a row
// of the image is on its way while the one before it is added to the results that it is a term of.
// Weights and sums stay in registers; rows further on are brought to L2.
#pragma once

#include "csrc/cuda/conv/depthwise.cuh"

namespace fusedops {

inline constexpr int kColumnThreads = 128;
inline constexpr int kMostColumnPairs = 64;  // of channels in a block
inline constexpr int kColumnRowsAhead = 4;   // that are brought to L2

// Results beside each other of a thread.
constexpr int column_results(int kernel, int stride) {
  return kernel == 3 || (kernel == 5 && stride == 1) ? 4 : 2;
}
// Blocks of a multiprocessor: what their registers leave room for.
constexpr int column_blocks(int kernel) { return kernel == 3 ? 5 : kernel == 5 ? 4 : 3; }

// How results and channels are cut into blocks.
struct ColumnGrid {
  int chunks, threads_x;  // of channels, and pairs of them in one
  int threads_y;          // threads of a block that have the same channels
  int rows, segments;     // results of a thread below each other, and threads below each other
  int across;             // threads beside each other
  unsigned items;         // threads for a pair of channels
  unsigned row_blocks;    // blocks of a chunk

  __device__ unsigned step() const { return row_blocks * threads_y; }
};

struct ColumnProblem {
  DepthwiseProblem base;  // its grid is not used
  ColumnGrid grid;
};

// Which channels a thread has.
struct ColumnThread {
  int x, y;     // in the block
  int channel;  // the first of two
  unsigned item;
  bool active;

  __device__ __forceinline__ ColumnThread(const ColumnGrid& grid, int channels)
      : x(static_cast<int>(threadIdx.x) % grid.threads_x),
        y(static_cast<int>(threadIdx.x) / grid.threads_x),
        channel((static_cast<int>(blockIdx.x % grid.chunks) * grid.threads_x + x) * 2),
        item(blockIdx.x / grid.chunks * grid.threads_y + y),
        active(y < grid.threads_y && channel < channels) {}
};

// Which results.
struct ColumnPlace {
  int n, row, end, column;  // column: in threads

  __device__ __forceinline__ ColumnPlace(const ColumnGrid& grid, unsigned item, int out_h) {
    const unsigned line = item / grid.across;
    column = static_cast<int>(item - line * grid.across);
    n = static_cast<int>(line / grid.segments);
    row = static_cast<int>(line - static_cast<unsigned>(n) * grid.segments) * grid.rows;
    end = min(row + grid.rows, out_h);
  }
};

// Rows of an image as a thread reads them: kCount neighbours of each, zeros beyond the image.
template <class T, int kCount>
struct ColumnImage {
  const T* first;  // the thread's first place in row 0
  int h, w, x, channels;

  __device__ __forceinline__ ColumnImage(const void* image, int n, int h_, int w_, int x_,
                                         int channels_, int channel)
      : first(static_cast<const T*>(image) + (int64_t{n} * h_ * w_ + x_) * channels_ + channel),
        h(h_),
        w(w_),
        x(x_),
        channels(channels_) {}

  __device__ __forceinline__ bool has(int y) const {
    return static_cast<unsigned>(y) < static_cast<unsigned>(h);
  }
  __device__ __forceinline__ bool has_column(int c) const {
    return static_cast<unsigned>(x + c) < static_cast<unsigned>(w);
  }
  __device__ __forceinline__ const T* at(int y, int c) const {
    return first + (int64_t{y} * w + c) * channels;
  }
  __device__ __forceinline__ void load(int y, uint32_t (&to)[kCount]) const {
    const bool inside = has(y);
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      const bool reads = inside && has_column(c);
      to[c] = reads ? __ldg(reinterpret_cast<const uint32_t*>(at(y, c))) : 0u;
    }
  }
  // Brings kOwn places of a row to L2, from one on; the rest is its neighbours'.
  template <int kOwn>
  __device__ __forceinline__ void prefetch(int y, int from) const {
    if (!has(y)) return;
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      if (has_column(from + c)) prefetch_to_l2(at(y, from + c));
    }
  }
};

// The weights of two channels, from (2, kTaps) of consecutive elements.
template <class T, int kTaps, bool kAdjoint>
__device__ __forceinline__ void load_column_taps(const T* from, float2 (&to)[kTaps]) {
  float values[2 * kTaps];
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    const float2 pair = unpack_pair<T>(__ldg(reinterpret_cast<const uint32_t*>(from) + i));
    values[2 * i] = pair.x, values[2 * i + 1] = pair.y;
  }
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    to[kAdjoint ? kTaps - 1 - i : i] = {values[i], values[kTaps + i]};
  }
}

template <class T, int kKernel, int kStride, bool kAdjoint>
__global__ void __launch_bounds__(kColumnThreads, column_blocks(kKernel))
    depthwise_columns_kernel(const __grid_constant__ ColumnProblem problem) {
  constexpr int kResults = column_results(kKernel, kStride), kTaps = kKernel * kKernel;
  constexpr int kInputs = (kResults - 1) * kStride + kKernel;
  constexpr int kOpen = (kKernel + kStride - 1) / kStride;  // rows of results that a row adds to
  constexpr int kBefore = kKernel - kStride;  // rows of a window that earlier steps have added
  constexpr int kWarmUp = (kBefore + kStride - 1) / kStride;  // steps
  __shared__ float2 affine[kMostColumnPairs][3];  // (z + affine[0]) * affine[1] + affine[2]
  wait_for_predecessor();
  const DepthwiseProblem& p = problem.base;
  const DepthwiseShape& s = p.shape;
  const int channels = static_cast<int>(s.channels);
  const int out_h = static_cast<int>(kAdjoint ? s.h : s.out_h);
  const int out_w = static_cast<int>(kAdjoint ? s.w : s.out_w);
  const ColumnThread thread(problem.grid, channels);
  if constexpr (!kAdjoint) {
    if (thread.active && thread.y == 0) stage_affine<T>(p, thread.channel, affine[thread.x]);
    __syncthreads();
  }
  if (!thread.active || thread.item >= problem.grid.items) return;
  const ColumnPlace at(problem.grid, thread.item, out_h);

  // Image
  const int pad_h = static_cast<int>(kAdjoint ? kKernel - 1 - s.pad_h : s.pad_h);
  const int pad_w = static_cast<int>(kAdjoint ? kKernel - 1 - s.pad_w : s.pad_w);
  const int ox = at.column * kResults;
  const ColumnImage<T, kInputs> image(p.x, at.n, static_cast<int>(kAdjoint ? s.out_h : s.h),
                                      static_cast<int>(kAdjoint ? s.out_w : s.w),
                                      ox * kStride - pad_w, channels, thread.channel);
  int oy = at.row - kWarmUp;
  int y = oy * kStride - pad_h + kBefore;  // the first row that the step brings
  uint32_t next[kStride][kInputs];
#pragma unroll
  for (int r = 0; r < kStride; ++r) image.load(y + r, next[r]);
#pragma unroll
  for (int r = kStride; r < kColumnRowsAhead; ++r) {
    image.template prefetch<kResults * kStride>(y + r, pad_w);
  }
  float2 weight[kTaps];
  load_column_taps<T, kTaps, kAdjoint>(
      static_cast<const T*>(p.weight) + int64_t{thread.channel} * kTaps, weight);

  float2 sums[kOpen][kResults] = {};
  for (; oy < at.end; ++oy, y += kStride) {
    uint32_t row[kStride][kInputs];
#pragma unroll
    for (int r = 0; r < kStride; ++r) {
#pragma unroll
      for (int c = 0; c < kInputs; ++c) row[r][c] = next[r][c];
      if (oy + 1 < at.end) image.load(y + kStride + r, next[r]);
      image.template prefetch<kResults * kStride>(y + kColumnRowsAhead + r, pad_w);
    }
#pragma unroll
    for (int r = 0; r < kStride; ++r) {
      if (!image.has(y + r)) continue;
      float2 v[kInputs];
#pragma unroll
      for (int c = 0; c < kInputs; ++c) v[c] = unpack_pair<T>(row[r][c]);
#pragma unroll
      for (int open = 0; open < kOpen; ++open) {
        const int tap_row = kBefore + r - open * kStride;
        if (tap_row < 0 || oy + open < at.row || oy + open >= at.end) continue;
#pragma unroll
        for (int b = 0; b < kKernel; ++b) {
          const float2 w = weight[tap_row * kKernel + b];
#pragma unroll
          for (int i = 0; i < kResults; ++i) {
            sums[open][i].x += v[i * kStride + b].x * w.x;
            sums[open][i].y += v[i * kStride + b].y * w.y;
          }
        }
      }
    }
    float2 z[kResults];
#pragma unroll
    for (int i = 0; i < kResults; ++i) z[i] = sums[0][i];
#pragma unroll
    for (int open = 0; open < kOpen; ++open) {
#pragma unroll
      for (int i = 0; i < kResults; ++i) {
        sums[open][i] = open + 1 < kOpen ? sums[open + 1][i] : float2{};
      }
    }
    if (oy < at.row) continue;

    // Norm, residual, activation
    const int64_t to = ((int64_t{at.n} * out_h + oy) * out_w + ox) * channels + thread.channel;
    const auto writes = [&](int i) { return ox + i < out_w; };
    if constexpr (!kAdjoint) {
      const float2(&norm)[3] = affine[thread.x];
#pragma unroll
      for (int i = 0; i < kResults; ++i) {
        z[i].x = (z[i].x + norm[0].x) * norm[1].x + norm[2].x;
        z[i].y = (z[i].y + norm[0].y) * norm[1].y + norm[2].y;
      }
      if (p.residual != nullptr) {
        const T* const residual = static_cast<const T*>(p.residual) + to;
#pragma unroll
        for (int i = 0; i < kResults; ++i) {
          if (!writes(i)) continue;
          const float2 added =
              unpack_pair<T>(__ldg(reinterpret_cast<const uint32_t*>(residual + i * channels)));
          z[i].x += added.x, z[i].y += added.y;
        }
      }
      with_activation(p.activation, [&]<Activation kActivation>() {
        resolve_rare<kActivation>(p.activation, [&]<Activation kNow>() {
#pragma unroll
          for (int i = 0; i < kResults; ++i) {
            z[i].x = activate_as<kNow, kAccuracyOf<T>>(z[i].x);
            z[i].y = activate_as<kNow, kAccuracyOf<T>>(z[i].y);
          }
        });
      });
    }
#pragma unroll
    for (int i = 0; i < kResults; ++i) {
      if (!writes(i)) continue;
      const Vec<T, 2> pair{{from_compute<T>(z[i].x), from_compute<T>(z[i].y)}};
      *reinterpret_cast<Vec<T, 2>*>(static_cast<T*>(p.y) + to + i * channels) = pair;
    }
  }
}

}  // namespace fusedops
