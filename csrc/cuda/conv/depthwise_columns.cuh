// Depthwise convolutions of (N, H, W, C), norm, residual and activation behind, from registers, and
// adjoints of those of stride 1.
//
// A thread has neighbouring channels of some columns of results beside each other and walks down
// them: the next rows of the image are on their way while a row is added to the results that it is
// a term of. Weights and sums stay in registers; what threads share comes from L1.
#pragma once

#include <type_traits>

#include "csrc/cuda/conv/depthwise.cuh"

namespace fusedops {

inline constexpr int kColumnThreads = 128;
inline constexpr int kColumnBlocks = 3;          // of a multiprocessor
inline constexpr int kMostColumnChannels = 128;  // of a block

// Channels of a thread, and its results beside each other: what registers have room for.
constexpr int column_vec(int kernel) { return kernel == 3 ? 8 : 2; }
constexpr int column_results(int kernel) { return kernel == 3 ? 1 : 2; }

// How results and channels are cut into blocks.
struct ColumnGrid {
  int chunks, threads_x;  // of channels, and threads that share one
  int threads_y;          // threads of a block that have the same channels
  int rows, segments;     // results of a thread below each other, and threads below each other
  int across;             // threads beside each other
  unsigned items;         // threads that have the same channels
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
  int channel;  // its first one
  unsigned item;
  bool active;

  __device__ __forceinline__ ColumnThread(const ColumnGrid& grid, int vec, int channels)
      : x(static_cast<int>(threadIdx.x) % grid.threads_x),
        y(static_cast<int>(threadIdx.x) / grid.threads_x),
        channel((static_cast<int>(blockIdx.x % grid.chunks) * grid.threads_x + x) * vec),
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

template <int kVec>
using ColumnWords =
    std::conditional_t<kVec == 8, uint4, std::conditional_t<kVec == 4, uint2, uint32_t>>;

// Rows of an image as a thread reads them: kCount neighbours of each, zeros beyond the image.
template <class T, int kVec, int kCount>
struct ColumnImage {
  using Words = ColumnWords<kVec>;
  const T* first;      // the thread's channels of column 0 of row 0
  int h, pitch;        // elements of a row
  int offset[kCount];  // of columns, clamped
  bool has[kCount];

  __device__ __forceinline__ ColumnImage(const void* image, int n, int h_, int w, int x,
                                         int channels, int channel)
      : first(static_cast<const T*>(image) + int64_t{n} * h_ * w * channels + channel),
        h(h_),
        pitch(w * channels) {
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      has[c] = static_cast<unsigned>(x + c) < static_cast<unsigned>(w);
      offset[c] = has[c] ? (x + c) * channels : 0;
    }
  }
  __device__ __forceinline__ bool has_row(int y) const {
    return static_cast<unsigned>(y) < static_cast<unsigned>(h);
  }
  __device__ __forceinline__ void load(int y, Words (&to)[kCount]) const {
    const bool inside = has_row(y);
    const T* const row = first + int64_t{y} * pitch;
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      to[c] = inside ? __ldg(reinterpret_cast<const Words*>(row + offset[c])) : Words{};
    }
  }
  __device__ __forceinline__ void unpack(const Words (&words)[kCount],
                                         float (&to)[kCount][kVec]) const {
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      const auto values = __builtin_bit_cast(Vec<T, kVec>, has[c] ? words[c] : Words{});
#pragma unroll
      for (int v = 0; v < kVec; ++v) to[c][v] = to_compute(values.value[v]);
    }
  }
};

// The weights of a thread's channels, from (kVec, kTaps) of consecutive elements.
template <class T, int kVec, int kTaps, bool kAdjoint>
__device__ __forceinline__ void load_column_taps(const T* from, float (&to)[kTaps][kVec]) {
  using Words = ColumnWords<kVec>;
#pragma unroll
  for (int k = 0; k < kTaps; ++k) {
    const auto values =
        __builtin_bit_cast(Vec<T, kVec>, __ldg(reinterpret_cast<const Words*>(from) + k));
#pragma unroll
    for (int v = 0; v < kVec; ++v) {
      const int at = k * kVec + v, tap = at % kTaps;
      to[kAdjoint ? kTaps - 1 - tap : tap][at / kTaps] = to_compute(values.value[v]);
    }
  }
}

template <class T, int kKernel, int kStride, bool kAdjoint>
__global__ void __launch_bounds__(kColumnThreads, kColumnBlocks)
    depthwise_columns_kernel(const __grid_constant__ ColumnProblem problem) {
  constexpr int kVec = column_vec(kKernel), kResults = column_results(kKernel);
  constexpr int kTaps = kKernel * kKernel, kInputs = (kResults - 1) * kStride + kKernel;
  constexpr int kOpen = (kKernel + kStride - 1) / kStride;  // rows of results that a row adds to
  constexpr int kBefore = kKernel - kStride;  // rows of a window that earlier steps have added
  static_assert(kKernel == 3 || kStride == 1);
  constexpr int kWarmUp = (kBefore + kStride - 1) / kStride;  // steps
  using Words = ColumnWords<kVec>;
  using Sums = float[kOpen][kResults][kVec];
  // (z + affine[0]) * affine[1] + affine[2]
  __shared__ __align__(16) float affine[3][kMostColumnChannels];
  wait_for_predecessor();
  const DepthwiseProblem& p = problem.base;
  const DepthwiseShape& s = p.shape;
  const int channels = static_cast<int>(s.channels);
  const int out_h = static_cast<int>(kAdjoint ? s.h : s.out_h);
  const int out_w = static_cast<int>(kAdjoint ? s.w : s.out_w);
  const ColumnThread thread(problem.grid, kVec, channels);
  if constexpr (!kAdjoint) {
    if (thread.active && thread.y == 0) {
#pragma unroll
      for (int v = 0; v < kVec; v += 2) {
        float2 to[3];
        stage_affine<T>(p, thread.channel + v, to);
#pragma unroll
        for (int i = 0; i < 3; ++i) {
          *reinterpret_cast<float2*>(&affine[i][thread.x * kVec + v]) = to[i];
        }
      }
    }
    __syncthreads();
  }
  if (!thread.active || thread.item >= problem.grid.items) return;

  // Image
  const ColumnPlace at(problem.grid, thread.item, out_h);
  const int pad_h = static_cast<int>(kAdjoint ? kKernel - 1 - s.pad_h : s.pad_h);
  const int pad_w = static_cast<int>(kAdjoint ? kKernel - 1 - s.pad_w : s.pad_w);
  const int ox = at.column * kResults;
  const ColumnImage<T, kVec, kInputs> image(p.x, at.n, static_cast<int>(kAdjoint ? s.out_h : s.h),
                                            static_cast<int>(kAdjoint ? s.out_w : s.w),
                                            ox * kStride - pad_w, channels, thread.channel);
  int oy = at.row - kWarmUp;
  int y = oy * kStride - pad_h + kBefore;  // the first row that the step brings
  Words next[kStride][kInputs];
#pragma unroll
  for (int r = 0; r < kStride; ++r) image.load(y + r, next[r]);
  float weight[kTaps][kVec];
  load_column_taps<T, kVec, kTaps, kAdjoint>(
      static_cast<const T*>(p.weight) + int64_t{thread.channel} * kTaps, weight);

  Sums sums = {};
  const int64_t to_row = int64_t{out_w} * channels;
  int64_t to = ((int64_t{at.n} * out_h + oy) * out_w + ox) * channels + thread.channel;
  for (; oy < at.end; ++oy, y += kStride, to += to_row) {
    float v[kStride][kInputs][kVec];
#pragma unroll
    for (int r = 0; r < kStride; ++r) {
      image.unpack(next[r], v[r]);
      if (oy + 1 < at.end) image.load(y + kStride + r, next[r]);
    }
    // NOTE: most rows add to all open results; without branches their sums are where they will be.
    // Of a large kernel what nothing reads is left out.
    const auto add = [&]<bool kAll>() {
#pragma unroll
      for (int r = 0; r < kStride; ++r) {
        if (!kAll && !image.has_row(y)) continue;
#pragma unroll
        for (int open = 0; open < kOpen; ++open) {
          const int tap_row = kBefore + r - open * kStride;
          if (tap_row < 0) continue;
          if (!kAll && (oy + open < at.row || oy + open >= at.end)) continue;
#pragma unroll
          for (int b = 0; b < kKernel; ++b) {
#pragma unroll
            for (int i = 0; i < kResults; ++i) {
#pragma unroll
              for (int c = 0; c < kVec; ++c) {
                sums[open][i][c] += v[r][i * kStride + b][c] * weight[tap_row * kKernel + b][c];
              }
            }
          }
        }
      }
    };
    const bool all = oy >= at.row && oy + kOpen <= at.end && image.has_row(y);
    if (kKernel == 3 || all) {
      add.template operator()<true>();
    } else {
      add.template operator()<false>();
    }
    float z[kResults][kVec];
#pragma unroll
    for (int i = 0; i < kResults * kVec; ++i) {
      z[i / kVec][i % kVec] = sums[0][i / kVec][i % kVec];
#pragma unroll
      for (int open = 0; open < kOpen; ++open) {
        sums[open][i / kVec][i % kVec] = open + 1 < kOpen ? sums[open + 1][i / kVec][i % kVec] : 0;
      }
    }
    if (oy < at.row) continue;

    // Norm, residual, activation
#pragma unroll
    for (int i = 0; i < kResults; ++i) {
      if (ox + i >= out_w) continue;
      const int64_t element = to + i * channels;
      if constexpr (!kAdjoint) {
        const float* const norm = &affine[0][thread.x * kVec];
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
          z[i][c] = (z[i][c] + norm[c]) * norm[kMostColumnChannels + c] +
                    norm[2 * kMostColumnChannels + c];
        }
        if (p.residual != nullptr) {
          const auto added = __builtin_bit_cast(
              Vec<T, kVec>,
              __ldg(reinterpret_cast<const Words*>(static_cast<const T*>(p.residual) + element)));
#pragma unroll
          for (int c = 0; c < kVec; ++c) z[i][c] += to_compute(added.value[c]);
        }
        with_activation(p.activation, [&]<Activation kActivation>() {
          resolve_rare<kActivation>(p.activation, [&]<Activation kNow>() {
#pragma unroll
            for (int c = 0; c < kVec; ++c) z[i][c] = activate_as<kNow, kAccuracyOf<T>>(z[i][c]);
          });
        });
      }
      Vec<T, kVec> result;
#pragma unroll
      for (int c = 0; c < kVec; ++c) result.value[c] = from_compute<T>(z[i][c]);
      *reinterpret_cast<Vec<T, kVec>*>(static_cast<T*>(p.y) + element) = result;
    }
  }
}

}  // namespace fusedops
