// The gradient of a first layer's image, on Tensor Cores.
//
// Four values of the image, a square of 2 x 2, are sums over kReach x kReach results, all outputs
// and three channels each: a product of 16 squares by 12 columns. A warp has one of the kReach
// columns of results, whose weights stay in registers; dy is read from shared memory as it lies
// there, each fragment for kReach rows of squares, and the block adds up what its warps have.
#pragma once

#include "csrc/common/device/async_copy.cuh"
#include "csrc/cuda/conv/first.cuh"

namespace fusedops {

inline constexpr int kImageThreads = 128;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr int kImageBlocks = 2;  // of a multiprocessor: code for older ones spills with 3
#else
inline constexpr int kImageBlocks = 3;
#endif
inline constexpr int kImageWarps = kImageThreads / 32;
inline constexpr int kSquareRows = 7;     // of a tile: 8 would spill
inline constexpr int kSquareValues = 12;  // 2 x 2 of three channels
inline constexpr int kImageOutputs = 64;  // the most

// kSteps: of 16 outputs.
template <int kKernel, int kSteps>
struct FirstImageLayout {
  static constexpr int kReach = (kKernel + 1) / 2;       // results that see a square, of a side
  static constexpr int kParts = kImageWarps / kReach;    // of 16 squares beside each other
  static constexpr int kSquares = 16 * kParts;           // of a tile's row
  static constexpr int kPlaces = kSquares + kReach - 1;  // of dy, likewise
  static constexpr int kPlaceRows = kSquareRows + kReach - 1;
  // NOTE: an odd number of 16 bytes, so that ldmatrix meets no conflict of banks.
  static constexpr int kPitch = 16 * kSteps + 8;  // of a place of dy
  static constexpr int kDyBytes = kPlaceRows * kPlaces * kPitch * 2;
  static constexpr int kSumBytes = kImageWarps * kSquareRows * 16 * kSquareValues * 4;
  static constexpr int kBufferBytes = kDyBytes > kSumBytes ? kDyBytes : kSumBytes;  // two of them
};

struct FirstImageProblem {
  FirstProblem forward;  // its y: dy (n, out_h, out_w, outputs)
  void* dx;              // (n, h, w, channels)
};

// Copies the part of dy that a tile of squares sees, zeros beyond it. y, x: its first result.
template <class T, class L, int kSteps>
__device__ __forceinline__ void fetch_dy(const FirstProblem& p, int n, int y, int x, uint32_t to) {
  constexpr int kChunks = 2 * kSteps, kSlots = kImageThreads / kChunks;
  const int outputs = static_cast<int>(p.outputs);
  const int out_h = static_cast<int>(p.out_h), out_w = static_cast<int>(p.out_w);
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const T* const dy = static_cast<const T*>(p.y) + int64_t{n} * out_h * out_w * outputs + chunk * 8;
#pragma unroll 2
  for (int i = threadIdx.x / kChunks; i < L::kPlaceRows * L::kPlaces; i += kSlots) {
    const int oy = y + i / L::kPlaces, ox = x + i % L::kPlaces;
    const bool is = static_cast<unsigned>(oy) < static_cast<unsigned>(out_h) &&
                    static_cast<unsigned>(ox) < static_cast<unsigned>(out_w) && chunk * 8 < outputs;
    copy_async(to + (i * L::kPitch + chunk * 8) * 2, dy + (int64_t{oy} * out_w + ox) * outputs,
               is ? 16 : 0);
  }
}

// Two weights of a warp's column of results, those of outputs o and the next one, for a column of
// the products; odd: of the padding, by which taps are shifted.
template <class T, int kKernel>
__device__ __forceinline__ uint32_t square_weights(const T* weight, int outputs, int o, int column,
                                                   int down, int across, int odd_h, int odd_w) {
  const int a = 2 * down + column / 6 - odd_h, b = 2 * across + column % 6 / 3 - odd_w;
  const bool is = column < kSquareValues && a >= 0 && a < kKernel && b >= 0 && b < kKernel;
  if (!is || o >= outputs) return 0;
  constexpr int kNext = kKernel * kKernel * kFirstChannels;
  const auto* const at = reinterpret_cast<const uint16_t*>(weight) + o * kNext +
                         (a * kKernel + b) * kFirstChannels + column % 3;
  return at[0] | static_cast<uint32_t>(at[kNext]) << 16;
}

// Squares of 16-bit values.
template <class T, int kKernel, int kSteps>
__global__ void __launch_bounds__(kImageThreads, kImageBlocks)
    first_image_kernel(const __grid_constant__ FirstImageProblem problem) {
  using L = FirstImageLayout<kKernel, kSteps>;
  constexpr int kReach = L::kReach;
  extern __shared__ __align__(16) unsigned char memory[];
  wait_for_predecessor();
  const FirstProblem& p = problem.forward;
  const int pad_h = static_cast<int>(p.pad_h), pad_w = static_cast<int>(p.pad_w);
  const int h = static_cast<int>(p.h), width = static_cast<int>(p.w) * kFirstChannels;
  const int outputs = static_cast<int>(p.outputs);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, pair = lane % 4;
  const int across = warp % kReach, part = warp / kReach;
  // NOTE: square q has results q + (pad + 1) / 2 - d, rounded down, d from 0 to kReach - 1.
  const int shift_h = (pad_h + 1) / 2 - (kReach - 1), shift_w = (pad_w + 1) / 2 - (kReach - 1);
  const auto fetch = [&](unsigned tile, int buffer) {
    const unsigned line = tile / p.tiles_w, n = line / p.tiles_h;
    const int row = static_cast<int>(line - n * p.tiles_h);
    const int column = static_cast<int>(tile - line * p.tiles_w);
    fetch_dy<T, L, kSteps>(p, static_cast<int>(n), row * kSquareRows + shift_h,
                           column * L::kSquares + shift_w,
                           shared_address(memory) + buffer * L::kBufferBytes);
  };

  // Weights, through the second buffer
  const int count = outputs * kKernel * kKernel * kFirstChannels / 8;
  for (int i = threadIdx.x; i < count; i += kImageThreads) {
    copy_async(shared_address(memory) + L::kBufferBytes + i * 16,
               static_cast<const T*>(p.weight) + i * 8);
  }
  commit_copies();
  fetch(blockIdx.x, 0);
  commit_copies();
  wait_for_copies<1>();
  __syncthreads();
  uint32_t weight[kReach][kSteps][2][2];  // rows of results, outputs, columns, halves of outputs
#pragma unroll
  for (int i = 0; i < kReach * kSteps * 4; ++i) {
    const int d = i / (kSteps * 4), k = i / 4 % kSteps, t = i / 2 % 2, half = i % 2;
    weight[d][k][t][half] = square_weights<T, kKernel>(
        reinterpret_cast<const T*>(memory + L::kBufferBytes), outputs, 16 * k + 8 * half + 2 * pair,
        8 * t + g, d, across, pad_h % 2, pad_w % 2);
  }

  // A lane's address among four 8 x 8 matrices: squares by outputs.
  const int own = ((part * 16 + lane % 16 + kReach - 1 - across) * L::kPitch + lane / 16 * 8) * 2;
  constexpr int kRowBytes = L::kPlaces * L::kPitch * 2;
  int buffer = 0;
  for (unsigned tile = blockIdx.x; tile < p.tiles; tile += gridDim.x, buffer ^= 1) {
    __syncthreads();  // what was in the other buffer has been read
    if (tile + gridDim.x < p.tiles) fetch(tile + gridDim.x, buffer ^ 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    unsigned char* const now = memory + buffer * L::kBufferBytes;
    float sums[kSquareRows][2][4] = {};
    uint32_t a[2][4];  // one on its way
    load_matrices(a[0], now + own);
#pragma unroll
    for (int i = 0; i < L::kPlaceRows * kSteps; ++i) {
      const int r = i / kSteps, k = i % kSteps;
      if (i + 1 < L::kPlaceRows * kSteps) {
        load_matrices(a[(i + 1) % 2],
                      now + own + (i + 1) / kSteps * kRowBytes + (i + 1) % kSteps * 32);
      }
#pragma unroll
      for (int d = 0; d < kReach; ++d) {
        const int row = r - (kReach - 1) + d;
        if (row < 0 || row >= kSquareRows) continue;
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          mma_k16<T>(sums[row][t], a[i % 2], weight[d][k][t][0], weight[d][k][t][1]);
        }
      }
    }

    // The warps' sums, where dy was: (warps, rows, 16 squares, values)
    __syncthreads();
    float* const shared = reinterpret_cast<float*>(now);
#pragma unroll
    for (int row = 0; row < kSquareRows; ++row) {
      float* const to = shared + ((warp * kSquareRows + row) * 16 + g) * kSquareValues + 2 * pair;
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        if (8 * t + 2 * pair >= kSquareValues) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          *reinterpret_cast<float2*>(to + 8 * half * kSquareValues + 8 * t) = {
              sums[row][t][2 * half], sums[row][t][2 * half + 1]};
        }
      }
    }
    __syncthreads();
    const unsigned line = tile / p.tiles_w, n = line / p.tiles_h;
    const int y0 = static_cast<int>(line - n * p.tiles_h) * kSquareRows * 2;
    const int x0 = static_cast<int>(tile - line * p.tiles_w) * L::kSquares * 2 * kFirstChannels;
    constexpr int kRowPairs = L::kSquares * 3;  // of values beside each other
#pragma unroll 3
    for (int i = threadIdx.x; i < 2 * kSquareRows * kRowPairs; i += kImageThreads) {
      const int row = i / kRowPairs, square = i % kRowPairs / 3, two = i % 3;
      const float* from = shared + square / 16 * (kReach * kSquareRows * 16 * kSquareValues) +
                          (row / 2 * 16 + square % 16) * kSquareValues + row % 2 * 6 + two * 2;
      float2 sum{0, 0};
#pragma unroll
      for (int e = 0; e < kReach; ++e) {
        const float2 one = *reinterpret_cast<const float2*>(from);
        sum.x += one.x, sum.y += one.y;
        from += kSquareRows * 16 * kSquareValues;
      }
      const int y = y0 + row, x = x0 + square * 6 + two * 2;
      if (y >= h || x >= width) continue;
      T* const to = static_cast<T*>(problem.dx) + (int64_t{n} * h + y) * width + x;
      if (width % 2 == 0) {
        *reinterpret_cast<uint32_t*>(to) = pack_pair<T>(sum.x, sum.y);
      } else {
        to[0] = from_compute<T>(sum.x);
        if (x + 1 < width) to[1] = from_compute<T>(sum.y);
      }
    }
  }
}

// Any sizes and dtype: a thread for each value.
template <class T>
__global__ void __launch_bounds__(kFirstThreads)
    first_image_any_kernel(const __grid_constant__ FirstImageProblem problem) {
  using C = Compute<T>;
  wait_for_predecessor();
  const FirstProblem& p = problem.forward;
  const int64_t count = p.n * p.h * p.w * p.channels;
  const int64_t step = int64_t{gridDim.x} * kFirstThreads;
  for (int64_t i = int64_t{blockIdx.x} * kFirstThreads + threadIdx.x; i < count; i += step) {
    const int64_t channel = i % p.channels, place = i / p.channels;
    const int64_t ix = place % p.w, iy = place / p.w % p.h, n = place / p.w / p.h;
    C sum = 0;
    for (int64_t tap = 0; tap < p.kh * p.kw; ++tap) {
      const int64_t y = iy + p.pad_h - tap / p.kw, x = ix + p.pad_w - tap % p.kw;
      if (y < 0 || x < 0 || y % p.stride_h != 0 || x % p.stride_w != 0) continue;
      const int64_t oy = y / p.stride_h, ox = x / p.stride_w;
      if (oy >= p.out_h || ox >= p.out_w) continue;
      const T* const dy =
          static_cast<const T*>(p.y) + ((n * p.out_h + oy) * p.out_w + ox) * p.outputs;
      const T* const weight = static_cast<const T*>(p.weight) + tap * p.channels + channel;
      for (int64_t o = 0; o < p.outputs; ++o) {
        sum += to_compute(dy[o]) * to_compute(weight[o * p.kh * p.kw * p.channels]);
      }
    }
    static_cast<T*>(problem.dx)[i] = from_compute<T>(sum);
  }
}

}  // namespace fusedops
