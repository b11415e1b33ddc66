// The small kernels around the passes of an edge MLP: batch statistics from the blocks' sums, the
// pooled values' normalisation and activation, and the gradients of scale and shift.
//
// A gradient's sums are those of g and of g (y - mean), where z = scale y + shift is what g belongs
// to. Under batch statistics (rstd) they are dbeta and dgamma / rstd, and every edge of weight w
// gets w (A + B y) on top (set_abstraction.md, part 3); else they are the gradients of shift and
// scale.
#pragma once

#include "csrc/common/device/vec.cuh"
#include "csrc/common/int_math.h"
#include "csrc/cuda/points/block_sums.cuh"
#include "csrc/cuda/points/edges/edge_problem.h"

namespace fusedops {

inline constexpr int kEdgeNormThreads = 128;

// The rows of `stats`, [kEdgeStats][width].
enum EdgeStat { kEdgeMean, kEdgeRstd, kEdgeVariance, kEdgeCount, kEdgeStats };

__device__ __forceinline__ float probe_sign(float scale) { return scale < 0.f ? -1.f : 1.f; }

// Batch statistics of a layer, from what its blocks found.
struct EdgeStatistics {
  const float* partial;  // [blocks][2 width + 1]: of v = sign(gamma) y, and how many last
  int blocks, width;
  const float2* given;  // [channels]: of all layers; this one's are (gamma, beta)
  int first, channels;  // the layer's first channel among them; how many there are
  float eps;
  float2* affine;  // [channels]: given, with (scale, shift) in this layer's place
  float* stats;    // [kEdgeStats][width]
};

static __global__ void __launch_bounds__(kJoinThreads)
    edge_statistics_kernel(const __grid_constant__ EdgeStatistics p) {
  __shared__ JoinStage stage;
  const int thread = joining_thread();
  for (int i = static_cast<int>(blockIdx.x) * kJoinThreads + thread; i < p.channels;
       i += static_cast<int>(gridDim.x) * kJoinThreads) {
    if (i < p.first || i >= p.first + p.width) p.affine[i] = p.given[i];
  }
  const int c = static_cast<int>(blockIdx.x * kJoinedChannels + threadIdx.x);
  const auto [n, center, squares] = join_moments(p.blocks, stage, [&](int b) {
    const float* const from = p.partial + b * (int64_t{2} * p.width + 1);
    return BlockMoments{from[2 * p.width], from[c], from[p.width + c]};
  });
  if (threadIdx.y > 0) return;
  const float2 gb = p.given[p.first + c];
  const double mean = center * probe_sign(gb.x);
  const double m2 = squares < 0 ? 0 : squares;  // NaN stays
  const double rstd = 1.0 / sqrt(m2 / (n > 0 ? n : 1) + p.eps);
  // NOTE: the shift that belongs to the rounded scale: what rounding took from it times a large
  // mean would be seen.
  const float scale = static_cast<float>(gb.x * rstd);
  p.affine[p.first + c] = {scale, static_cast<float>(gb.y - mean * scale)};
  p.stats[kEdgeMean * p.width + c] = static_cast<float>(mean);
  p.stats[kEdgeRstd * p.width + c] = static_cast<float>(rstd);
  p.stats[kEdgeVariance * p.width + c] = static_cast<float>(m2 / (n > 1 ? n - 1 : 1));
  p.stats[kEdgeCount * p.width + c] = static_cast<float>(n);
}

// Gradients of a norm's vectors, from what the blocks of a pass found.
struct EdgeSumsEnd {
  const float* partial;  // [blocks][2][width]
  int blocks, width;
  const float2* affine;
  const float* stats;
  float2* grads;  // those of (scale, shift) or (gamma, beta)
  float2* dense;  // (A, B), where there are stats
};

// Channels kJoinedChannels * block and on.
__device__ __forceinline__ void end_sums(const EdgeSumsEnd& p, int block) {
  __shared__ JoinStage stage;
  const int c = block * kJoinedChannels + static_cast<int>(threadIdx.x);
  double of_g = 0, of_gy = 0;
  for_blocks(
      p.blocks,
      [&](int b) {
        const float* const from = p.partial + b * int64_t{2} * p.width + c;
        return float2{from[0], from[p.width]};
      },
      [&](float2 found) { of_g += found.x, of_gy += found.y; });
  const double g = add_slices(stage, of_g), gy = add_slices(stage, of_gy);
  if (threadIdx.y > 0) return;
  const double rstd = p.stats ? p.stats[kEdgeRstd * p.width + c] : 1;
  p.grads[c] = {static_cast<float>(gy * rstd), static_cast<float>(g)};
  if (!p.stats) return;
  const double n = fmax(p.stats[kEdgeCount * p.width + c], 1.f);
  const double mean = p.stats[kEdgeMean * p.width + c], scale = p.affine[c].x;
  const double slope = -scale * rstd * gy * rstd / n;
  p.dense[c] = {static_cast<float>(-scale * g / n - slope * mean), static_cast<float>(slope)};
}

static __global__ void __launch_bounds__(kJoinThreads)
    edge_sums_kernel(const __grid_constant__ EdgeSumsEnd p) {
  end_sums(p, static_cast<int>(blockIdx.x));
}

// The sum of each value over the blocks.
struct EdgeValuesEnd {
  const float* partial;  // [blocks][count]
  int blocks, count;
  float* out;
};

inline constexpr int kEndedValues = 32;  // of a thread block

// Values kEndedValues * block and on, always in the same order.
__device__ __forceinline__ void end_values(const EdgeValuesEnd& p, int block) {
  constexpr int kSlices = kJoinThreads / kEndedValues;
  __shared__ float stage[kSlices][kEndedValues];
  const int thread = joining_thread();
  const int x = thread % kEndedValues, slice = thread / kEndedValues;
  const int i = block * kEndedValues + x;
  float sum = 0.f;
  if (i < p.count) {
#pragma unroll 8
    for (int b = slice; b < p.blocks; b += kSlices)
      sum += __ldg(p.partial + int64_t{b} * p.count + i);
  }
  stage[slice][x] = sum;
  __syncthreads();
  if (slice > 0 || i >= p.count) return;
  sum = 0.f;
  for (int other = 0; other < kSlices; ++other) sum += stage[other][x];
  p.out[i] = sum;
}

static __global__ void __launch_bounds__(kJoinThreads)
    edge_values_kernel(const __grid_constant__ EdgeValuesEnd p) {
  end_values(p, static_cast<int>(blockIdx.x));
}

// Both ends of a pass back: the first `sums_blocks` blocks have the norm's.
static __global__ void __launch_bounds__(kJoinThreads)
    edge_backward_end_kernel(const __grid_constant__ EdgeSumsEnd sums, int sums_blocks,
                             const __grid_constant__ EdgeValuesEnd values) {
  const int block = static_cast<int>(blockIdx.x);
  if (block < sums_blocks) {
    end_sums(sums, block);
  } else {
    end_values(values, block - sums_blocks);
  }
}

inline unsigned value_blocks(int64_t count) {
  return static_cast<unsigned>(ceil_div(count, int64_t{kEndedValues}));
}

template <class T>
struct EdgePool {
  const float* best;     // [groups][channels]: sign(scale) y
  const int16_t* which;  // negative: an empty group
  const float2* affine;  // [channels]: (scale, shift)
  int64_t groups;
  int channels;
  float slope;
  T* out;              // forward: act(scale y + shift)
  const T* dout;       // backward
  const float* stats;  // its means, or null
  int* winners;        // [groups][width]: scale times the gradient of z (T), and its neighbour
  float* partial;      // [grid.x][2][width]
  int width;
};

// A thread has kValues channels, which divide a group's.
template <class T, int kValues>
static __global__ void edge_pool_kernel(EdgePool<T> a) {
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kValues;
  if (i >= a.groups * a.channels) return;
  const int channel = static_cast<int>(i % a.channels);
  const auto best = *reinterpret_cast<const Vec<float, kValues>*>(a.best + i);
  const auto which = *reinterpret_cast<const Vec<int16_t, kValues>*>(a.which + i);
  Vec<T, kValues> out;
#pragma unroll
  for (int v = 0; v < kValues; ++v) {
    const float2 st = __ldg(a.affine + channel + v);
    const float z = fmaf(probe_sign(st.x) * best.value[v], st.x, st.y);
    const float value = z < 0.f ? (a.slope == 0.f ? 0.f : a.slope * z) : z;
    out.value[v] = from_compute<T>(which.value[v] < 0 ? 0.f : value);
  }
  *reinterpret_cast<Vec<T, kValues>*>(a.out + i) = out;
}

inline constexpr int kEdgePoolRows = 8;
inline constexpr int kEdgePoolBatch = 4;  // groups that a thread reads at a time

// A value of T and a neighbour in one word.
template <class T>
__device__ __forceinline__ int winner_of(float grad, int16_t neighbour) {
  const T value = from_compute<T>(grad);
  return *reinterpret_cast<const unsigned short*>(&value) | static_cast<int>(neighbour) << 16;
}

// A block takes 32 channels; its 8 rows of threads take every 8 * grid.x-th group.
template <class T>
__global__ void __launch_bounds__(32 * kEdgePoolRows) edge_pool_backward_kernel(EdgePool<T> a) {
  __shared__ float sums[2][kEdgePoolRows][32];
  const int c = static_cast<int>(blockIdx.y * 32 + threadIdx.x);
  const bool is_channel = c < a.channels;
  const float2 st = is_channel ? a.affine[c] : float2{};
  const float mean = is_channel && a.stats ? a.stats[kEdgeMean * a.width + c] : 0.f;
  float g = 0.f, gy = 0.f;
  const int64_t step = int64_t{gridDim.x} * kEdgePoolRows;
  for (int64_t first = int64_t{blockIdx.x} * kEdgePoolRows + threadIdx.y; first < a.groups;
       first += kEdgePoolBatch * step) {
    float best[kEdgePoolBatch], dout[kEdgePoolBatch];
    int16_t which[kEdgePoolBatch];
#pragma unroll
    for (int u = 0; u < kEdgePoolBatch; ++u) {
      const int64_t i = (first + u * step) * a.channels + c;
      const bool reads = is_channel && first + u * step < a.groups;
      best[u] = reads ? a.best[i] : 0.f;
      dout[u] = reads ? to_compute(a.dout[i]) : 0.f;
      which[u] = reads ? a.which[i] : int16_t{-1};
    }
#pragma unroll
    for (int u = 0; u < kEdgePoolBatch; ++u) {
      if (first + u * step >= a.groups) break;
      const float y = probe_sign(st.x) * best[u];
      const float below = a.slope == 0.f ? 0.f : a.slope * dout[u];
      const float dz = which[u] < 0 ? 0.f : fmaf(y, st.x, st.y) <= 0.f ? below : dout[u];
      g += dz;
      gy = fmaf(dz, y - mean, gy);
      a.winners[(first + u * step) * a.width + c] = winner_of<T>(dz * st.x, which[u]);
    }
  }
  sums[0][threadIdx.y][threadIdx.x] = g;
  sums[1][threadIdx.y][threadIdx.x] = gy;
  __syncthreads();
  if (threadIdx.y < 2) {
    float sum = 0.f;
    for (int row = 0; row < kEdgePoolRows; ++row) sum += sums[threadIdx.y][row][threadIdx.x];
    a.partial[(int64_t{2} * blockIdx.x + threadIdx.y) * a.width + c] = sum;
  }
}

}  // namespace fusedops
