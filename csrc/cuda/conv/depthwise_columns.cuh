// Depthwise 3x3 convolutions of (N, H, W, C) with stride 2, norm, residual and activation behind,
// from registers.
//
// A thread has eight channels of a column of results and walks down it: two rows of the image are
// on their way while those before them are added to the results that they are terms of. Weights
// stay in registers; what neighbouring columns share comes from L1.
#pragma once

#include "csrc/cuda/conv/depthwise.cuh"

namespace fusedops {

inline constexpr int kColumnThreads = 128;
inline constexpr int kColumnBlocks = 3;       // of a multiprocessor
inline constexpr int kMostColumnEights = 16;  // of channels in a block

// How results and channels are cut into blocks.
struct ColumnGrid {
  int chunks, eights;  // of channels, and eights of channels in one
  int columns;         // of a block
  int rows, segments;  // results of a thread, and threads of a column of an image
  unsigned items;      // columns of all segments of all images
};

struct ColumnProblem {
  DepthwiseProblem base;  // its grid is not used
  ColumnGrid grid;
};

// The weights of eight channels, and the two results that a row may be a term of.
template <class T>
struct ColumnSums {
  using Row = uint4[3];  // three neighbours, eight channels each
  float weight[9][8];
  float sum[2][8] = {};

  // from: (8, 3, 3).
  __device__ __forceinline__ explicit ColumnSums(const uint4* from) {
#pragma unroll
    for (int k = 0; k < 9; ++k) {
      const auto values = __builtin_bit_cast(Vec<T, 8>, __ldg(from + k));
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        weight[(k * 8 + i) % 9][(k * 8 + i) / 9] = to_compute(values.value[i]);
      }
    }
  }
  // row: which one of the first result's three; its last one is the first of the second result.
  __device__ __forceinline__ void add(int row, const Row& words) {
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      const auto values = __builtin_bit_cast(Vec<T, 8>, words[c]);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float v = to_compute(values.value[i]);
        sum[0][i] += v * weight[row * 3 + c][i];
        if (row == 2) sum[1][i] += v * weight[c][i];
      }
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kColumnThreads, kColumnBlocks)
    depthwise_columns_kernel(const __grid_constant__ ColumnProblem problem) {
  using Row = typename ColumnSums<T>::Row;
  // (z + affine[0]) * affine[1] + affine[2]
  __shared__ __align__(16) float affine[3][kMostColumnEights * 8];
  wait_for_predecessor();
  const DepthwiseProblem& p = problem.base;
  const ColumnGrid& grid = problem.grid;
  const DepthwiseShape& s = p.shape;
  const int channels = static_cast<int>(s.channels);
  const int column = static_cast<int>(threadIdx.x) / grid.eights;
  const int own = (static_cast<int>(threadIdx.x) - column * grid.eights) * 8;
  const int channel = static_cast<int>(blockIdx.x % grid.chunks) * grid.eights * 8 + own;
  if (column == 0 && channel < channels) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      float2 to[3];
      stage_affine<T>(p, channel + i, to);
#pragma unroll
      for (int k = 0; k < 3; ++k) *reinterpret_cast<float2*>(&affine[k][own + i]) = to[k];
    }
  }
  __syncthreads();
  const unsigned item = blockIdx.x / grid.chunks * grid.columns + column;
  if (column >= grid.columns || channel >= channels || item >= grid.items) return;

  // Place
  const int in_h = static_cast<int>(s.h), in_w = static_cast<int>(s.w);
  const int out_h = static_cast<int>(s.out_h), out_w = static_cast<int>(s.out_w);
  const unsigned line = item / out_w;
  const int ox = static_cast<int>(item - line * out_w);
  const int n = static_cast<int>(line / grid.segments);
  int oy = static_cast<int>(line - static_cast<unsigned>(n) * grid.segments) * grid.rows;
  const int end = min(oy + grid.rows, out_h);
  const int ix = ox * 2 - static_cast<int>(s.pad_w);
  int iy = oy * 2 - static_cast<int>(s.pad_h);
  const T* const image =
      static_cast<const T*>(p.x) + (int64_t{n} * in_h * in_w + ix) * channels + channel;
  const auto load = [&](int y, Row& to) {
    const bool inside = static_cast<unsigned>(y) < static_cast<unsigned>(in_h);
    const T* const from = image + int64_t{y} * in_w * channels;
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      const bool reads = inside && static_cast<unsigned>(ix + c) < static_cast<unsigned>(in_w);
      to[c] = reads ? __ldg(reinterpret_cast<const uint4*>(from + c * channels)) : uint4{};
    }
  };

  Row first, next[2];
  load(iy, first);
#pragma unroll
  for (int r = 0; r < 2; ++r) load(iy + 1 + r, next[r]);
  ColumnSums<T> sums(
      reinterpret_cast<const uint4*>(static_cast<const T*>(p.weight) + int64_t{channel} * 9));
  sums.add(0, first);
  for (; oy < end; ++oy) {
    Row now[2];
    iy += 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int c = 0; c < 3; ++c) now[r][c] = next[r][c];
      if (oy + 1 < end) load(iy + 1 + r, next[r]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sums.add(1 + r, now[r]);

    // Norm, residual, activation
    const int64_t to = ((int64_t{n} * out_h + oy) * out_w + ox) * channels + channel;
    float z[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      z[i] = (sums.sum[0][i] + affine[0][own + i]) * affine[1][own + i] + affine[2][own + i];
      sums.sum[0][i] = sums.sum[1][i];
      sums.sum[1][i] = 0;
    }
    if (p.residual != nullptr) {
      const auto added = __builtin_bit_cast(
          Vec<T, 8>, __ldg(reinterpret_cast<const uint4*>(static_cast<const T*>(p.residual) + to)));
#pragma unroll
      for (int i = 0; i < 8; ++i) z[i] += to_compute(added.value[i]);
    }
    with_activation(p.activation, [&]<Activation kActivation>() {
      resolve_rare<kActivation>(p.activation, [&]<Activation kNow>() {
#pragma unroll
        for (int i = 0; i < 8; ++i) z[i] = activate_as<kNow, kAccuracyOf<T>>(z[i]);
      });
    });
    Vec<T, 8> result;
#pragma unroll
    for (int i = 0; i < 8; ++i) result.value[i] = from_compute<T>(z[i]);
    *reinterpret_cast<Vec<T, 8>*>(static_cast<T*>(p.y) + to) = result;
  }
}

}  // namespace fusedops
