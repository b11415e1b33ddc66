// Depthwise convolutions of (N, H, W, C) and their adjoints, norm, residual and activation behind.
//
// A thread has two neighbouring channels of a tile of 4 x 4 results. It reads the rows of the image
// that the tile needs, each value once, and adds it to all results that it is a term of: indices of
// taps are constants, weights and sums stay in registers. Neighbouring threads read neighbouring
// channels; what two tiles share comes from the caches.
#pragma once

#include "csrc/common/depthwise.h"
#include "csrc/common/device/activation.cuh"
#include "csrc/common/device/mma.cuh"
#include "csrc/cuda/batch_norm/channel_walk.cuh"

namespace fusedops {

inline constexpr int kDepthwiseThreads = 256;
inline constexpr int kDepthwiseBlocks = 2;  // of a multiprocessor
inline constexpr int kDepthwiseTile = 4;    // results along each side
inline constexpr int kMostPairs = 64;       // of channels in a block

// How tiles and channels are cut into blocks.
struct DepthwiseGrid {
  int chunks;                // of channels
  int threads_x, threads_y;  // pairs of channels of a block, and its tiles at a time
  int tiles_h, tiles_w;      // of an image
  unsigned tiles;            // of all images
  unsigned row_blocks;       // blocks of a chunk
  int channels;

  __host__ __device__ unsigned step() const { return row_blocks * threads_y; }
};

// Blocks share the tiles evenly, in one wave: what is staged once serves many tiles, and a block's
// next tile can be fetched while it sums.
inline DepthwiseGrid depthwise_grid(int64_t n, int64_t channels, int64_t tiles_h, int64_t tiles_w,
                                    int64_t most_blocks) {
  DepthwiseGrid grid{};
  const int64_t pairs = ceil_div(channels, int64_t{2});
  grid.chunks = static_cast<int>(ceil_div(pairs, int64_t{kMostPairs}));
  grid.threads_x = static_cast<int>(ceil_div(pairs, int64_t{grid.chunks}));
  grid.threads_y = kDepthwiseThreads / grid.threads_x;
  grid.tiles_h = static_cast<int>(tiles_h);
  grid.tiles_w = static_cast<int>(tiles_w);
  grid.tiles = static_cast<unsigned>(n * tiles_h * tiles_w);
  grid.channels = static_cast<int>(channels);
  const int64_t steps = ceil_div(int64_t{grid.tiles}, int64_t{grid.threads_y});
  const int64_t wanted = ceil_div(most_blocks, int64_t{grid.chunks});
  const int64_t rounds = ceil_div(steps, wanted < steps ? wanted : steps);
  grid.row_blocks = static_cast<unsigned>(ceil_div(steps, rounds));
  return grid;
}

struct DepthwiseProblem {
  DepthwiseShape shape;
  DepthwiseGrid grid;
  const void* x;                   // (n, h, w, channels); dy of an adjoint
  const void* weight;              // (channels, kh, kw)
  const void* residual = nullptr;  // like y
  void* y;                         // (n, out_h, out_w, channels); dx of an adjoint
  ChannelVector conv_bias;
  NormArguments norm;
  Activation activation = Activation::kNone;
  bool adjoint = false;
};

// What is behind the sums of two channels: (z + to[0]) * to[1] + to[2].
template <class T>
__device__ __forceinline__ void stage_affine(const DepthwiseProblem& p, int channel, float2* to) {
  float before[2], mean[2], scale[2], bias[2], rstd[2];
  p.conv_bias.load<T>(channel, 0.0f, before);
  p.norm.mean.load<T>(channel, 0.0f, mean);
  p.norm.weight.load<T>(channel, 1.0f, scale);
  p.norm.bias.load<T>(channel, -0.0f, bias);
  p.norm.rstds<T>(channel, rstd);
  to[0] = {before[0] - mean[0], before[1] - mean[1]};
  to[1] = {scale[0] * rstd[0], scale[1] * rstd[1]};
  to[2] = {bias[0], bias[1]};
}

// Where a thread stands.
struct DepthwisePlace {
  int tx, ty, first, col;  // first: channel of the block, col: of the thread
  unsigned row_block;
  bool active;

  __device__ __forceinline__ explicit DepthwisePlace(const DepthwiseGrid& grid) {
    tx = threadIdx.x % grid.threads_x;
    ty = threadIdx.x / grid.threads_x;
    first = static_cast<int>(blockIdx.x % grid.chunks) * grid.threads_x * 2;
    col = first + tx * 2;
    row_block = blockIdx.x / grid.chunks;
    active = ty < grid.threads_y && col < grid.channels;
  }
};

struct TilePlace {
  int n, row, column;  // of the tile

  template <class Grid>
  __device__ __forceinline__ TilePlace(const Grid& grid, unsigned tile) {
    const unsigned line = tile / grid.tiles_w;
    column = static_cast<int>(tile - line * grid.tiles_w);
    n = static_cast<int>(line / grid.tiles_h);
    row = static_cast<int>(line - static_cast<unsigned>(n) * grid.tiles_h);
  }
};

// kColumns neighbours of a row as pairs of channels, zeros beyond the image. at: of the first.
template <class T, int kColumns>
__device__ __forceinline__ void load_pairs(const T* image, int64_t at, bool inside, int first,
                                           int width, int channels, float2 (&to)[kColumns]) {
  uint32_t bits[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const bool reads = inside && static_cast<unsigned>(first + c) < static_cast<unsigned>(width);
    bits[c] = reads ? __ldg(reinterpret_cast<const uint32_t*>(image + (at + c * channels))) : 0u;
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) to[c] = unpack_pair<T>(bits[c]);
}

// NOTE: volatile, so that it stays where it is written.
__device__ __forceinline__ void prefetch_to_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// Brings kRows x kColumns places of an image into L2: what a thread reads of its next tile, less
// what its neighbours bring. NOTE: loads of halos are served by L1 and L2; memory sees few of them.
template <int kRows, int kColumns, class T>
__device__ __forceinline__ void prefetch_places(const T* image, int n, int row, int column,
                                                int height, int width, int channels) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (static_cast<unsigned>(row + r) >= static_cast<unsigned>(height)) continue;
    const T* const from = image + ((int64_t{n} * height + row + r) * width + column) * channels;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (static_cast<unsigned>(column + c) >= static_cast<unsigned>(width)) continue;
      prefetch_to_l2(from + c * channels);
    }
  }
}

// One dimension of a tile: which tap carries input i to result o.
template <int kKernel, int kStride, bool kAdjoint, int kResults>
struct TileAxis {
  static constexpr int kFirst = kAdjoint ? -((kKernel - 1) / kStride) : 0;
  static constexpr int kLast =
      kAdjoint ? (kResults - 1) / kStride : (kResults - 1) * kStride + kKernel - 1;
  static constexpr int kInputs = kLast - kFirst + 1;
  // Inputs from a tile's first to that of the next one.
  static constexpr int kOwn = kAdjoint ? kResults / kStride : kResults * kStride;

  // Outside of 0 .. kKernel - 1: none.
  __host__ __device__ static constexpr int tap(int result, int input) {
    return kAdjoint ? result - kStride * (input + kFirst) : input - result * kStride;
  }
  __host__ __device__ static constexpr bool takes(int result, int input) {
    return tap(result, input) >= 0 && tap(result, input) < kKernel;
  }
  // The first result of a tile, which an adjoint has where the taps' parity is that of tap 0.
  __host__ __device__ static constexpr int64_t first_result(int64_t tile, int64_t pad) {
    return tile * kResults - (kAdjoint ? pad % kStride : 0);
  }
  __host__ __device__ static constexpr int64_t first_input(int64_t tile, int64_t pad) {
    return kAdjoint ? (first_result(tile, pad) + pad) / kStride + kFirst
                    : first_result(tile, pad) * kStride - pad;
  }
};

// The weights of a block's channels to shared memory, (taps, pitch).
template <class T, int kTaps>
__device__ __forceinline__ void stage_taps(const T* weight, const DepthwiseGrid& grid, int first,
                                           int pitch, float* taps) {
  const int count = min(grid.threads_x * 2, grid.channels - first) * kTaps;
  const T* const from = weight + int64_t{first} * kTaps;
  for (int i = threadIdx.x; i < count; i += kDepthwiseThreads) {
    taps[i % kTaps * pitch + i / kTaps] = to_compute(from[i]);
  }
}

template <class T, int kKernel, int kStride, bool kAdjoint>
__global__ void __launch_bounds__(kDepthwiseThreads, kDepthwiseBlocks)
    depthwise_kernel(const __grid_constant__ DepthwiseProblem p) {
  constexpr int kTile = kDepthwiseTile, kTaps = kKernel * kKernel;
  using Axis = TileAxis<kKernel, kStride, kAdjoint, kTile>;
  constexpr int kInputs = Axis::kInputs;
  __shared__ float2 shared[kTaps * (kMostPairs + 1)];
  wait_for_predecessor();
  const DepthwiseShape& s = p.shape;
  const DepthwisePlace at(p.grid);
  const int pitch = (p.grid.threads_x + 1) * 2;  // two more: fewer conflicts of banks
  stage_taps<T, kTaps>(static_cast<const T*>(p.weight), p.grid, at.first, pitch,
                       reinterpret_cast<float*>(shared));
  __syncthreads();
  if (!at.active) return;
  float2 weight[kTaps];
#pragma unroll
  for (int t = 0; t < kTaps; ++t) weight[t] = shared[t * (p.grid.threads_x + 1) + at.tx];
  float before[2], mean[2], scale[2], bias[2], rstd[2];
  p.conv_bias.load<T>(at.col, 0.0f, before);
  p.norm.mean.load<T>(at.col, 0.0f, mean);
  p.norm.weight.load<T>(at.col, 1.0f, scale);
  p.norm.bias.load<T>(at.col, -0.0f, bias);
  p.norm.rstds<T>(at.col, rstd);
#pragma unroll
  for (int i = 0; i < 2; ++i) before[i] -= mean[i], scale[i] *= rstd[i];

  const int channels = p.grid.channels;
  const int in_h = static_cast<int>(kAdjoint ? s.out_h : s.h);
  const int in_w = static_cast<int>(kAdjoint ? s.out_w : s.w);
  const int out_h = static_cast<int>(kAdjoint ? s.h : s.out_h);
  const int out_w = static_cast<int>(kAdjoint ? s.w : s.out_w);
  const int pad_h = static_cast<int>(s.pad_h), pad_w = static_cast<int>(s.pad_w);
  const T* const image = static_cast<const T*>(p.x) + at.col;
  for (unsigned tile = at.row_block * p.grid.threads_y + at.ty; tile < p.grid.tiles;
       tile += p.grid.step()) {
    const TilePlace place(p.grid, tile);
    const int iy = static_cast<int>(Axis::first_input(place.row, pad_h));
    const int ix = static_cast<int>(Axis::first_input(place.column, pad_w));
    if (tile + p.grid.step() < p.grid.tiles) {
      const TilePlace next(p.grid, tile + p.grid.step());
      prefetch_places<Axis::kOwn, Axis::kOwn>(
          image, next.n, static_cast<int>(Axis::first_input(next.row, pad_h)),
          static_cast<int>(Axis::first_input(next.column, pad_w)), in_h, in_w, channels);
    }
    float2 sums[kTile][kTile] = {};
#pragma unroll
    for (int r = 0; r < kInputs; ++r) {
      const bool inside = static_cast<unsigned>(iy + r) < static_cast<unsigned>(in_h);
      const int64_t from = ((int64_t{place.n} * in_h + iy + r) * in_w + ix) * channels;
      float2 v[kInputs];
      load_pairs<T>(image, from, inside, ix, in_w, channels, v);
#pragma unroll
      for (int oy = 0; oy < kTile; ++oy) {
        if (!Axis::takes(oy, r)) continue;
#pragma unroll
        for (int ox = 0; ox < kTile; ++ox) {
#pragma unroll
          for (int c = 0; c < kInputs; ++c) {
            if (!Axis::takes(ox, c)) continue;
            const float2 w = weight[Axis::tap(oy, r) * kKernel + Axis::tap(ox, c)];
            sums[oy][ox].x += v[c].x * w.x;
            sums[oy][ox].y += v[c].y * w.y;
          }
        }
      }
    }

    // Norm, residual, activation
    const int oy0 = static_cast<int>(Axis::first_result(place.row, pad_h));
    const int ox0 = static_cast<int>(Axis::first_result(place.column, pad_w));
    const auto writes = [&](int oy, int ox) {
      return static_cast<unsigned>(oy0 + oy) < static_cast<unsigned>(out_h) &&
             static_cast<unsigned>(ox0 + ox) < static_cast<unsigned>(out_w);
    };
    const int64_t to = ((int64_t{place.n} * out_h + oy0) * out_w + ox0) * channels + at.col;
    const auto element = [&](int oy, int ox) { return to + (int64_t{oy} * out_w + ox) * channels; };
#pragma unroll
    for (int oy = 0; oy < kTile; ++oy) {
#pragma unroll
      for (int ox = 0; ox < kTile; ++ox) {
        float2& z = sums[oy][ox];
        z.x = (z.x + before[0]) * scale[0] + bias[0];
        z.y = (z.y + before[1]) * scale[1] + bias[1];
        if (p.residual != nullptr && writes(oy, ox)) {
          const float2 added = unpack_pair<T>(__ldg(reinterpret_cast<const uint32_t*>(
              static_cast<const T*>(p.residual) + element(oy, ox))));
          z.x += added.x, z.y += added.y;
        }
      }
    }
    with_activation(p.activation, [&]<Activation kActivation>() {
      resolve_rare<kActivation>(p.activation, [&]<Activation kNow>() {
#pragma unroll
        for (int i = 0; i < kTile * kTile; ++i) {
          float2& z = sums[i / kTile][i % kTile];
          z.x = activate_as<kNow, kAccuracyOf<T>>(z.x);
          z.y = activate_as<kNow, kAccuracyOf<T>>(z.y);
        }
      });
    });
#pragma unroll
    for (int oy = 0; oy < kTile; ++oy) {
#pragma unroll
      for (int ox = 0; ox < kTile; ++ox) {
        if (!writes(oy, ox)) continue;
        const Vec<T, 2> pair{{from_compute<T>(sums[oy][ox].x), from_compute<T>(sums[oy][ox].y)}};
        *reinterpret_cast<Vec<T, 2>*>(static_cast<T*>(p.y) + element(oy, ox)) = pair;
      }
    }
  }
}

// Any kernel, stride and dtype: a thread for each result.
template <class T>
__global__ void __launch_bounds__(kDepthwiseThreads)
    depthwise_any_kernel(const __grid_constant__ DepthwiseProblem p) {
  using C = Compute<T>;
  wait_for_predecessor();
  const DepthwiseShape& s = p.shape;
  const int64_t out_h = p.adjoint ? s.h : s.out_h, out_w = p.adjoint ? s.w : s.out_w;
  const int64_t in_h = p.adjoint ? s.out_h : s.h, in_w = p.adjoint ? s.out_w : s.w;
  const int64_t count = s.n * out_h * out_w * s.channels;
  const T* const x = static_cast<const T*>(p.x);
  const T* const weight = static_cast<const T*>(p.weight);
  const int64_t step = int64_t{gridDim.x} * kDepthwiseThreads;
  for (int64_t i = int64_t{blockIdx.x} * kDepthwiseThreads + threadIdx.x; i < count; i += step) {
    const int64_t channel = i % s.channels, place = i / s.channels;
    const int64_t ox = place % out_w, oy = place / out_w % out_h, n = place / out_w / out_h;
    C sum = 0;
    for (int64_t a = 0; a < s.kh; ++a) {
      const int64_t y = p.adjoint ? oy + s.pad_h - a : oy * s.stride_h - s.pad_h + a;
      if (p.adjoint && y % s.stride_h != 0) continue;
      const int64_t iy = p.adjoint ? y / s.stride_h : y;
      if (y < 0 || iy >= in_h) continue;
      for (int64_t b = 0; b < s.kw; ++b) {
        const int64_t at = p.adjoint ? ox + s.pad_w - b : ox * s.stride_w - s.pad_w + b;
        if (p.adjoint && at % s.stride_w != 0) continue;
        const int64_t ix = p.adjoint ? at / s.stride_w : at;
        if (at < 0 || ix >= in_w) continue;
        sum += to_compute(weight[(channel * s.kh + a) * s.kw + b]) *
               to_compute(x[((n * in_h + iy) * in_w + ix) * s.channels + channel]);
      }
    }
    const C centred = sum + (p.conv_bias.at<T>(channel, C(0)) - p.norm.mean.at<T>(channel, C(0)));
    C z = centred * (p.norm.rstd<T>(channel) * p.norm.weight.at<T>(channel, C(1))) +
          p.norm.bias.at<T>(channel, C(-0.0));
    if (p.residual != nullptr) z += to_compute(static_cast<const T*>(p.residual)[i]);
    with_activation(p.activation, [&]<Activation kActivation>() {
      resolve_rare<kActivation>(
          p.activation, [&]<Activation kNow>() { z = activate_as<kNow, kAccuracyOf<T>>(z); });
    });
    static_cast<T*>(p.y)[i] = from_compute<T>(z);
  }
}

}  // namespace fusedops
