// The gradient of a first layer's weight: dy (outputs x results) by windows (results x values), on
// Tensor Cores. A warp has a row of all windows; its sums stay in registers over many tiles.
#pragma once

#include "csrc/cuda/conv/first.cuh"

namespace fusedops {

inline constexpr int kFirstResults = kFirstRows * kFirstColumns;  // of a tile
inline constexpr int kDyPitch = kFirstOutputs + 8;                // fewer conflicts of banks
constexpr int first_weight_threads(int kernel) { return kernel * 32; }
constexpr int first_weight_blocks(int kernel) { return kernel > 3 ? 2 : 4; }  // a multiprocessor

struct FirstWeightProblem {
  FirstProblem forward;  // its y: dy (n, out_h, out_w, outputs)
  float* partial;        // (gridDim.x, outputs, kh, kw, channels)
};

// dy of a tile, (results, kDyPitch); zeros beyond the image and beyond the outputs.
template <class T, int kThreads>
__device__ __forceinline__ void stage_dy(const FirstProblem& p, int64_t n, int64_t oy0, int64_t ox0,
                                         int64_t first, T* to) {
  constexpr int kChunks = kFirstOutputs / 8;
#pragma unroll 5
  for (int i = threadIdx.x; i < kFirstResults * kChunks; i += kThreads) {
    const int chunk = i % kChunks, result = i / kChunks;
    const int64_t oy = oy0 + result / kFirstColumns, ox = ox0 + result % kFirstColumns;
    const int64_t output = first + chunk * 8;
    uint4 values{0, 0, 0, 0};
    if (oy < p.out_h && ox < p.out_w && output < p.outputs) {
      const int64_t at = ((n * p.out_h + oy) * p.out_w + ox) * p.outputs + output;
      values = *reinterpret_cast<const uint4*>(static_cast<const T*>(p.y) + at);
    }
    *reinterpret_cast<uint4*>(to + result * kDyPitch + chunk * 8) = values;
  }
}

// Two values of 16 bits, the first in the lower half.
template <class T>
__device__ __forceinline__ uint32_t two_values(const T* first, const T* second) {
  return *reinterpret_cast<const uint16_t*>(first) |
         static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(second)) << 16;
}

template <class T, int kKernel>
__global__ void __launch_bounds__(first_weight_threads(kKernel), first_weight_blocks(kKernel))
    first_weight_kernel(const __grid_constant__ FirstWeightProblem problem) {
  using L = FirstLayout<kKernel>;
  constexpr int kThreads = first_weight_threads(kKernel), kParts = kFirstOutputs / 16;
  constexpr int kStep = kFirstStride * kFirstChannels;  // from a result's values to the next one's
  __shared__ __align__(16) T dy[kFirstResults * kDyPitch];
  __shared__ __align__(16) T image[L::kImage];
  wait_for_predecessor();
  const FirstProblem& p = problem.forward;
  const int64_t first = int64_t{blockIdx.y} * kFirstOutputs;
  const int row = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, pair = lane % 4;
  // A lane's address among four 8 x 8 matrices: results by outputs.
  const T* const dy_at = dy + (lane % 8 + lane / 16 * 8) * kDyPitch + lane / 8 % 2 * 8;
  float sums[kParts][L::kEights][4] = {};
  for (unsigned tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const unsigned line = tile / p.tiles_w;
    const int64_t n = line / p.tiles_h, oy0 = int64_t{line % p.tiles_h} * kFirstRows;
    const int64_t ox0 = int64_t{tile % p.tiles_w} * kFirstColumns;
    __syncthreads();
    stage_dy<T, kThreads>(p, n, oy0, ox0, first, dy);
    stage_first_image<T, kKernel, kThreads>(p, n, oy0 * kFirstStride - p.pad_h,
                                            ox0 * kFirstStride - p.pad_w, image);
    __syncthreads();
#pragma unroll 2
    for (int m = 0; m < kFirstRows; ++m) {
      const T* const window = image + (m * kFirstStride + row) * L::kPitch + 2 * pair * kStep + g;
      uint32_t b[L::kEights][2];  // results 2 pair and the next one, and those eight further
#pragma unroll
      for (int e = 0; e < L::kEights; ++e) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const T* const at = window + e * 8 + half * 8 * kStep;
          b[e][half] = two_values(at, at + kStep);
        }
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        uint32_t a[4];
        load_transposed(a, dy_at + m * kFirstColumns * kDyPitch + part * 16);
#pragma unroll
        for (int e = 0; e < L::kEights; ++e) mma_k16<T>(sums[part][e], a, b[e][0], b[e][1]);
      }
    }
  }
  float* const to = problem.partial + blockIdx.x * p.outputs * kKernel * L::kValues;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int e = 0; e < L::kEights; ++e) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t output = first + part * 16 + g + i / 2 * 8;
        const int value = e * 8 + 2 * pair + i % 2;
        if (output >= p.outputs || value >= L::kValues) continue;
        to[(output * kKernel + row) * L::kValues + value] = sums[part][e][i];
      }
    }
  }
}

// Any sizes and dtype: a block for each element of the weight.
template <class T>
__global__ void __launch_bounds__(kFirstThreads)
    first_weight_any_kernel(const __grid_constant__ FirstProblem p, void* dweight) {
  using C = Compute<T>;
  __shared__ double shared[kFirstThreads];
  wait_for_predecessor();
  const int64_t element = blockIdx.x, channel = element % p.channels;
  const int64_t tap = element / p.channels % (p.kh * p.kw);
  const int64_t output = element / p.channels / (p.kh * p.kw);
  const int64_t count = p.n * p.out_h * p.out_w;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kFirstThreads) {
    const int64_t ox = i % p.out_w, oy = i / p.out_w % p.out_h, n = i / p.out_w / p.out_h;
    const int64_t iy = oy * p.stride_h - p.pad_h + tap / p.kw;
    const int64_t ix = ox * p.stride_w - p.pad_w + tap % p.kw;
    if (iy < 0 || iy >= p.h || ix < 0 || ix >= p.w) continue;
    sum +=
        double{to_compute(static_cast<const T*>(p.y)[i * p.outputs + output])} *
        to_compute(static_cast<const T*>(p.x)[((n * p.h + iy) * p.w + ix) * p.channels + channel]);
  }
  shared[threadIdx.x] = sum;
  for (int width = kFirstThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) shared[threadIdx.x] += shared[threadIdx.x + width];
  }
  if (threadIdx.x == 0) {
    static_cast<T*>(dweight)[element] = from_compute<T>(static_cast<C>(shared[0]));
  }
}

}  // namespace fusedops
