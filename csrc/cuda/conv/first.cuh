// Convolutions of images of three channels with stride 2, the first layers of networks: 7x7 and
// 3x3, on Tensor Cores, with norm and activation behind the sums.
//
// The kH rows of a window are products of their own: 3 kW neighbouring values of the image, padded
// to eights, by those of the weight. Neighbouring results are 6 values apart, so that operands are
// read from the image as it lies in shared memory. A warp keeps the weights of 32 outputs in
// registers, for all tiles of its block.
#pragma once

#include "csrc/common/device/activation.cuh"
#include "csrc/common/device/mma.cuh"
#include "csrc/cuda/batch_norm/channel_walk.cuh"

namespace fusedops {

inline constexpr int kFirstThreads = 128, kFirstBlocks = 4;  // blocks: of a multiprocessor
inline constexpr int kFirstRows = 8, kFirstColumns = 16;     // results in a tile
inline constexpr int kFirstChannels = 3, kFirstStride = 2;
inline constexpr int kFirstOutputs = 64;  // of a block
inline constexpr int kWarpOutputs = 32;

struct FirstProblem {
  int64_t n, h, w, channels;  // x (n, h, w, channels)
  int64_t outputs, kh, kw;    // weight (outputs, kh, kw, channels)
  int64_t stride_h, stride_w, pad_h, pad_w;
  int64_t out_h, out_w;  // y (n, out_h, out_w, outputs)
  const void* x;
  const void* weight;
  void* y;
  ChannelVector conv_bias;
  NormArguments norm;
  Activation activation;
  unsigned tiles;
  int tiles_h, tiles_w;  // of an image

  // What a sum becomes in front of the activation: sum * scale + shift.
  template <class T>
  __device__ __forceinline__ void affine(int64_t output, Compute<T>& scale,
                                         Compute<T>& shift) const {
    using C = Compute<T>;
    scale = norm.rstd<T>(output) * norm.weight.at<T>(output, C(1));
    const C before = conv_bias.at<T>(output, C(0)) - norm.mean.at<T>(output, C(0));
    shift = before * scale + norm.bias.at<T>(output, C(0));
  }
};

// The sizes that a kernel's side fixes.
template <int kKernel>
struct FirstLayout {
  static constexpr int kValues = kKernel * kFirstChannels;  // of a row of a window
  static constexpr int kEights = (kValues + 7) / 8;
  static constexpr int kWindowRows = (kFirstRows - 1) * kFirstStride + kKernel;
  static constexpr int kWindowColumns = (kFirstColumns - 1) * kFirstStride + kKernel;
  static constexpr int kWindowValues = kWindowColumns * kFirstChannels;
  static constexpr int kPitch = (kWindowValues + 1) / 2 * 2;  // of the image's rows
  static constexpr int kWeightPitch =
      kKernel * kEights * 8 + 2;  // of an output; an odd number of words
  static constexpr int kImage = kWindowRows * kPitch + 8 * kEights;  // operands read beyond
};

// The block's weights, zeros in front of the next eight and of outputs that are none.
template <class T, int kKernel>
__device__ __forceinline__ void stage_first_weight(const FirstProblem& p, int64_t first, T* to) {
  using L = FirstLayout<kKernel>;
  constexpr int kRow = L::kEights * 8, kCount = kKernel * kRow;
  const T* const from = static_cast<const T*>(p.weight);
  for (int i = threadIdx.x; i < kFirstOutputs * kCount; i += kFirstThreads) {
    const int output = i / kCount, row = i % kCount / kRow, value = i % kRow;
    const bool is = value < L::kValues && first + output < p.outputs;
    const int64_t at = ((first + output) * kKernel + row) * L::kValues + value;
    to[output * L::kWeightPitch + row * kRow + value] = is ? from[at] : from_compute<T>(0.0f);
  }
}

// The part of an image that a tile's windows see, zeros beyond the image.
template <class T, int kKernel, int kThreads>
__device__ __forceinline__ void stage_first_image(const FirstProblem& p, int64_t n, int64_t top,
                                                  int64_t left, T* to) {
  using L = FirstLayout<kKernel>;
  constexpr int kCount = L::kWindowRows * L::kWindowValues;
  const T* const image = static_cast<const T*>(p.x) + n * p.h * p.w * kFirstChannels;
#pragma unroll 6
  for (int i = threadIdx.x; i < kCount; i += kThreads) {
    const int row = i / L::kWindowValues, value = i % L::kWindowValues;
    const int64_t y = top + row, at = left * kFirstChannels + value;
    const bool is = y >= 0 && y < p.h && at >= 0 && at < p.w * kFirstChannels;
    to[row * L::kPitch + value] = is ? image[y * p.w * kFirstChannels + at] : from_compute<T>(0.0f);
  }
}

// sums += windows of 16 results by the weights of 32 outputs. at: of the lane's first value.
template <class T, int kKernel>
__device__ __forceinline__ void multiply_windows(
    const T* at, uint32_t last_mask,
    const uint32_t (&weight)[4][kKernel][FirstLayout<kKernel>::kEights], float (&sums)[4][4]) {
  using L = FirstLayout<kKernel>;
  constexpr int kNext = 8 * kFirstStride * kFirstChannels;  // eight results further
#pragma unroll
  for (int r = 0; r < kKernel; ++r) {
#pragma unroll
    for (int e = 0; e < L::kEights; e += 2) {
      const auto pair = [&](int eight, int offset) {
        const uint32_t values =
            *reinterpret_cast<const uint32_t*>(at + r * L::kPitch + eight * 8 + offset);
        return eight + 1 == L::kEights ? values & last_mask : values;
      };
      if (e + 1 < L::kEights) {
        const uint32_t a[4] = {pair(e, 0), pair(e, kNext), pair(e + 1, 0), pair(e + 1, kNext)};
#pragma unroll
        for (int j = 0; j < 4; ++j) mma_k16<T>(sums[j], a, weight[j][r][e], weight[j][r][e + 1]);
      } else {
        const uint32_t low = pair(e, 0), high = pair(e, kNext);
#pragma unroll
        for (int j = 0; j < 4; ++j) mma_k8<T>(sums[j], low, high, weight[j][r][e]);
      }
    }
  }
}

template <class T, int kKernel>
__global__ void __launch_bounds__(kFirstThreads, kFirstBlocks)
    first_kernel(const __grid_constant__ FirstProblem p) {
  using L = FirstLayout<kKernel>;
  __shared__ __align__(16) T staged[kFirstOutputs * L::kWeightPitch];
  __shared__ __align__(16) T image[L::kImage];
  __shared__ __align__(16) float scale[kFirstOutputs], shift[kFirstOutputs];
  wait_for_predecessor();
  const int64_t first = int64_t{blockIdx.y} * kFirstOutputs;
  stage_first_weight<T, kKernel>(p, first, staged);
  for (int i = threadIdx.x; i < kFirstOutputs; i += kFirstThreads) {
    scale[i] = shift[i] = 0;
    if (first + i < p.outputs) p.affine<T>(first + i, scale[i], shift[i]);
  }
  __syncthreads();

  // A lane's place in tiles of 16 results by 8 outputs: g, and a pair of columns
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
  const int parts = p.outputs - first > kWarpOutputs ? 2 : 1;  // of the outputs, one for a warp
  const int part = warp % parts * kWarpOutputs;
  // NOTE: column 2 q + i of product j is output 8 q + 2 j + i: a lane's results are neighbours.
  uint32_t weight[4][kKernel][L::kEights];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const T* const row = staged + (part + 8 * (g / 2) + 2 * j + g % 2) * L::kWeightPitch + 2 * pair;
#pragma unroll
    for (int r = 0; r < kKernel; ++r) {
#pragma unroll
      for (int e = 0; e < L::kEights; ++e) {
        weight[j][r][e] = *reinterpret_cast<const uint32_t*>(row + (r * L::kEights + e) * 8);
      }
    }
  }
  // What the last eight has behind the window's row is not its own.
  const int own = L::kValues - (L::kEights - 1) * 8 - 2 * pair;
  const uint32_t last_mask = own >= 2 ? ~0u : own == 1 ? 0xffffu : 0u;
  const int64_t output = first + part + 8 * pair;  // the first of the lane's eight

  for (unsigned tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const unsigned line = tile / p.tiles_w;
    const int64_t n = line / p.tiles_h, oy0 = int64_t{line % p.tiles_h} * kFirstRows;
    const int64_t ox0 = int64_t{tile % p.tiles_w} * kFirstColumns;
    __syncthreads();
    stage_first_image<T, kKernel, kFirstThreads>(p, n, oy0 * kFirstStride - p.pad_h,
                                                 ox0 * kFirstStride - p.pad_w, image);
    __syncthreads();
#pragma unroll 1
    for (int m = warp / parts; m < kFirstRows && oy0 + m < p.out_h;
         m += kFirstThreads / 32 / parts) {
      float sums[4][4] = {};
      const T* const at =
          image + m * kFirstStride * L::kPitch + g * kFirstStride * kFirstChannels + 2 * pair;
      multiply_windows<T, kKernel>(at, last_mask, weight, sums);
      float z[2][8];  // of results g and g + 8
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int o = part + 8 * pair + 2 * j + i;
          z[0][2 * j + i] = sums[j][i] * scale[o] + shift[o];
          z[1][2 * j + i] = sums[j][2 + i] * scale[o] + shift[o];
        }
      }
      with_activation(p.activation, [&]<Activation kActivation>() {
        resolve_rare<kActivation>(p.activation, [&]<Activation kNow>() {
#pragma unroll
          for (int i = 0; i < 16; ++i) {
            z[i / 8][i % 8] = activate_as<kNow, kAccuracyOf<T>>(z[i / 8][i % 8]);
          }
        });
      });
      if (output >= p.outputs) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t ox = ox0 + g + 8 * i;
        if (ox >= p.out_w) continue;
        Vec<T, 8> values;
#pragma unroll
        for (int k = 0; k < 8; ++k) values.value[k] = from_compute<T>(z[i][k]);
        const int64_t to = (((n * p.out_h + oy0 + m) * p.out_w) + ox) * p.outputs + output;
        *reinterpret_cast<Vec<T, 8>*>(static_cast<T*>(p.y) + to) = values;
      }
    }
  }
}

// Any sizes and dtype: a thread for each result.
template <class T>
__global__ void __launch_bounds__(kFirstThreads)
    first_any_kernel(const __grid_constant__ FirstProblem p) {
  using C = Compute<T>;
  wait_for_predecessor();
  const int64_t count = p.n * p.out_h * p.out_w * p.outputs;
  const int64_t step = int64_t{gridDim.x} * kFirstThreads;
  for (int64_t i = int64_t{blockIdx.x} * kFirstThreads + threadIdx.x; i < count; i += step) {
    const int64_t output = i % p.outputs, place = i / p.outputs;
    const int64_t ox = place % p.out_w, oy = place / p.out_w % p.out_h;
    const int64_t n = place / p.out_w / p.out_h;
    C sum = 0;
    for (int64_t tap = 0; tap < p.kh * p.kw; ++tap) {
      const int64_t iy = oy * p.stride_h - p.pad_h + tap / p.kw;
      const int64_t ix = ox * p.stride_w - p.pad_w + tap % p.kw;
      if (iy < 0 || iy >= p.h || ix < 0 || ix >= p.w) continue;
      const T* const x = static_cast<const T*>(p.x) + ((n * p.h + iy) * p.w + ix) * p.channels;
      const T* const weight =
          static_cast<const T*>(p.weight) + (output * p.kh * p.kw + tap) * p.channels;
      for (int64_t c = 0; c < p.channels; ++c) sum += to_compute(x[c]) * to_compute(weight[c]);
    }
    C scale, shift;
    p.affine<T>(output, scale, shift);
    C z = sum * scale + shift;
    with_activation(p.activation, [&]<Activation kActivation>() {
      resolve_rare<kActivation>(
          p.activation, [&]<Activation kNow>() { z = activate_as<kNow, kAccuracyOf<T>>(z); });
    });
    static_cast<T*>(p.y)[i] = from_compute<T>(z);
  }
}

}  // namespace fusedops
