// Depthwise convolutions of (N, H, W, C), norm, residual and activation behind, from registers, and
// adjoints of those of stride 1.
//
// A thread has neighbouring channels of a column of results and walks down it: rows of the image
// are on their way while those before them are added to the results that they are terms of. Weights
// stay in registers; what neighbouring columns share comes from L1.
#pragma once

#include <type_traits>

#include "csrc/cuda/conv/depthwise.cuh"

namespace fusedops {

inline constexpr int kColumnThreads = 128;
inline constexpr int kColumnBlocks = 3;          // of a multiprocessor
inline constexpr int kMostColumnChannels = 128;  // of a block

// Channels of a thread: as many as registers have room for their weights.
constexpr int column_vec(int kernel) { return kernel == 3 ? 8 : 4; }

// How results and channels are cut into blocks.
struct ColumnGrid {
  int chunks, threads_x;  // of channels, and threads along one
  int columns;            // of a block
  int rows, segments;     // results of a thread, and threads of a column of an image
  unsigned items;         // columns of all segments of all images
};

struct ColumnProblem {
  DepthwiseProblem base;  // its grid is not used
  ColumnGrid grid;
};

// The results that a walk down a column has begun.
template <class T, int kKernel, int kStride, bool kAdjoint>
struct OpenResults {
  static constexpr int kVec = column_vec(kKernel), kTaps = kKernel * kKernel;
  static constexpr int kOpen = static_cast<int>(ceil_div(kKernel, kStride));
  using Values = Vec<T, kVec>;
  using Words = std::conditional_t<kVec == 8, uint4, uint2>;

  float weight[kTaps][kVec];
  float sum[kOpen][kVec] = {};

  // from: (kVec, kKernel, kKernel).
  __device__ __forceinline__ explicit OpenResults(const Words* from) {
#pragma unroll
    for (int k = 0; k < kTaps; ++k) {
      const auto values = __builtin_bit_cast(Values, __ldg(from + k));
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const int at = k * kVec + i, tap = at % kTaps;
        weight[kAdjoint ? kTaps - 1 - tap : tap][at / kTaps] = to_compute(values.value[i]);
      }
    }
  }
  // words: a row of the image; row: which one of the window of the first open result.
  __device__ __forceinline__ void add(int row, const Words (&words)[kKernel]) {
#pragma unroll
    for (int c = 0; c < kKernel; ++c) {
      const auto values = __builtin_bit_cast(Values, words[c]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const float v = to_compute(values.value[i]);
#pragma unroll
        for (int open = 0; open < kOpen; ++open) {
          const int tap = row - open * kStride;
          if (tap >= 0) sum[open][i] += v * weight[tap * kKernel + c][i];
        }
      }
    }
  }
  // The first one is done.
  __device__ __forceinline__ void shift() {
#pragma unroll
    for (int open = 0; open < kOpen; ++open) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum[open][i] = open + 1 < kOpen ? sum[open + 1][i] : 0.0f;
    }
  }
};

template <class T, int kKernel, int kStride, bool kAdjoint>
__global__ void __launch_bounds__(kColumnThreads, kColumnBlocks)
    depthwise_columns_kernel(const __grid_constant__ ColumnProblem problem) {
  using Results = OpenResults<T, kKernel, kStride, kAdjoint>;
  using Words = typename Results::Words;
  constexpr int kVec = Results::kVec;
  // (z + affine[0]) * affine[1] + affine[2]
  __shared__ __align__(16) float affine[3][kMostColumnChannels];
  wait_for_predecessor();
  const DepthwiseProblem& p = problem.base;
  const ColumnGrid& grid = problem.grid;
  const DepthwiseShape& s = p.shape;
  const int channels = static_cast<int>(s.channels);
  const int column = static_cast<int>(threadIdx.x) / grid.threads_x;
  const int own = (static_cast<int>(threadIdx.x) - column * grid.threads_x) * kVec;
  const int channel = static_cast<int>(blockIdx.x % grid.chunks) * grid.threads_x * kVec + own;
  if (!kAdjoint && column == 0 && channel < channels) {
    float mean[kVec], rstd[kVec], to[3][kVec];
    p.conv_bias.load<T>(channel, 0.0f, to[0]);
    p.norm.mean.load<T>(channel, 0.0f, mean);
    p.norm.weight.load<T>(channel, 1.0f, to[1]);
    p.norm.bias.load<T>(channel, -0.0f, to[2]);
    p.norm.rstds<T>(channel, rstd);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      affine[0][own + i] = to[0][i] - mean[i];
      affine[1][own + i] = to[1][i] * rstd[i];
      affine[2][own + i] = to[2][i];
    }
  }
  __syncthreads();
  const unsigned item = blockIdx.x / grid.chunks * grid.columns + column;
  if (column >= grid.columns || channel >= channels || item >= grid.items) return;

  // Place
  const int in_h = static_cast<int>(kAdjoint ? s.out_h : s.h);
  const int in_w = static_cast<int>(kAdjoint ? s.out_w : s.w);
  const int out_h = static_cast<int>(kAdjoint ? s.h : s.out_h);
  const int out_w = static_cast<int>(kAdjoint ? s.w : s.out_w);
  const int pad_h = static_cast<int>(kAdjoint ? kKernel - 1 - s.pad_h : s.pad_h);
  const int pad_w = static_cast<int>(kAdjoint ? kKernel - 1 - s.pad_w : s.pad_w);
  const unsigned line = item / out_w;
  const int ox = static_cast<int>(item - line * out_w);
  const int n = static_cast<int>(line / grid.segments);
  int oy = static_cast<int>(line - static_cast<unsigned>(n) * grid.segments) * grid.rows;
  const int end = min(oy + grid.rows, out_h);
  const int ix = ox * kStride - pad_w;
  int iy = oy * kStride - pad_h;
  const T* const image =
      static_cast<const T*>(p.x) + (int64_t{n} * in_h * in_w + ix) * channels + channel;
  const auto load = [&](int y, Words(&to)[kKernel]) {
    const bool inside = static_cast<unsigned>(y) < static_cast<unsigned>(in_h);
    const T* const from = image + int64_t{y} * in_w * channels;
#pragma unroll
    for (int c = 0; c < kKernel; ++c) {
      const bool reads = inside && static_cast<unsigned>(ix + c) < static_cast<unsigned>(in_w);
      to[c] = reads ? __ldg(reinterpret_cast<const Words*>(from + c * channels)) : Words{};
    }
  };

  // Rows that the first step does not bring
  constexpr int kBefore = kKernel - kStride;
  Words rows[kKernel][kKernel];
#pragma unroll
  for (int r = 0; r < kKernel; ++r) load(iy + r, rows[r]);
  Results results(reinterpret_cast<const Words*>(static_cast<const T*>(p.weight) +
                                                 int64_t{channel} * Results::kTaps));
#pragma unroll
  for (int r = 0; r < kBefore; ++r) results.add(r, rows[r]);

  for (; oy < end; ++oy) {
    Words now[kStride][kKernel];
    iy += kStride;
#pragma unroll
    for (int r = 0; r < kStride; ++r) {
#pragma unroll
      for (int c = 0; c < kKernel; ++c) now[r][c] = rows[kBefore + r][c];
      if (oy + 1 < end) load(iy + kBefore + r, rows[kBefore + r]);
    }
#pragma unroll
    for (int r = 0; r < kStride; ++r) results.add(kBefore + r, now[r]);

    // Norm, residual, activation
    const int64_t to = ((int64_t{n} * out_h + oy) * out_w + ox) * channels + channel;
    float z[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) z[i] = results.sum[0][i];
    results.shift();
    if constexpr (!kAdjoint) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        z[i] = (z[i] + affine[0][own + i]) * affine[1][own + i] + affine[2][own + i];
      }
      if (p.residual != nullptr) {
        const auto added = __builtin_bit_cast(
            typename Results::Values,
            __ldg(reinterpret_cast<const Words*>(static_cast<const T*>(p.residual) + to)));
#pragma unroll
        for (int i = 0; i < kVec; ++i) z[i] += to_compute(added.value[i]);
      }
      with_activation(p.activation, [&]<Activation kActivation>() {
        resolve_rare<kActivation>(p.activation, [&]<Activation kNow>() {
#pragma unroll
          for (int i = 0; i < kVec; ++i) z[i] = activate_as<kNow, kAccuracyOf<T>>(z[i]);
        });
      });
    }
    typename Results::Values result;
#pragma unroll
    for (int i = 0; i < kVec; ++i) result.value[i] = from_compute<T>(z[i]);
    *reinterpret_cast<typename Results::Values*>(static_cast<T*>(p.y) + to) = result;
  }
}

}  // namespace fusedops
