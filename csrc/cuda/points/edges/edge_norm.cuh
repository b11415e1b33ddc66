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
#include "csrc/cuda/points/edges/edge_problem.h"

namespace fusedops {

inline constexpr int kEdgeNormThreads = 128;

// The rows of `stats`, [kEdgeStats][width].
enum EdgeStat { kEdgeMean, kEdgeRstd, kEdgeVariance, kEdgeCount, kEdgeStats };

__device__ __forceinline__ float probe_sign(float scale) { return scale < 0.f ? -1.f : 1.f; }

inline constexpr int kEdgeSumRows = 32;  // threads that share a channel's blocks
inline constexpr int kEdgeSumBatch = 9;  // blocks that a thread reads at a time: 288 in all

// The sums over the blocks of what values(b, to) gives, in double and always in the same order, for
// the threads of row 0. A thread block is 32 channels x kEdgeSumRows.
template <int kSums, class Values>
__device__ __forceinline__ void sum_over_blocks(int blocks, double (*stage)[kEdgeSumRows][32],
                                                double (&sums)[kSums], Values&& values) {
#pragma unroll
  for (int s = 0; s < kSums; ++s) sums[s] = 0;
  for (int first = static_cast<int>(threadIdx.y); first < blocks;
       first += kEdgeSumBatch * kEdgeSumRows) {
    double found[kEdgeSumBatch][kSums];
#pragma unroll
    for (int u = 0; u < kEdgeSumBatch; ++u) {
      values(min(first + u * kEdgeSumRows, blocks - 1), found[u]);
    }
#pragma unroll
    for (int u = 0; u < kEdgeSumBatch; ++u) {
      if (first + u * kEdgeSumRows >= blocks) continue;
#pragma unroll
      for (int s = 0; s < kSums; ++s) sums[s] += found[u][s];
    }
  }
#pragma unroll
  for (int s = 0; s < kSums; ++s) stage[s][threadIdx.y][threadIdx.x] = sums[s];
  __syncthreads();
  if (threadIdx.y == 0) {
#pragma unroll
    for (int s = 0; s < kSums; ++s) sums[s] = 0;
    for (int row = 0; row < kEdgeSumRows; ++row) {
#pragma unroll
      for (int s = 0; s < kSums; ++s) sums[s] += stage[s][row][threadIdx.x];
    }
  }
  __syncthreads();
}

// partial: [blocks][2 width + 1]: the blocks' means of v = sign(gamma) y, sums of squared distances
// to them, and how many. given: (gamma, beta) by channel.
static __global__ void __launch_bounds__(32 * kEdgeSumRows)
    edge_statistics_kernel(const float* partial, int blocks, int width, const float2* given,
                           float eps, float2* affine, float* stats) {
  __shared__ double stage[2][kEdgeSumRows][32];
  __shared__ double means[32];
  const int c = static_cast<int>(blockIdx.x * 32 + threadIdx.x);
  const int64_t pitch = 2 * width + 1;
  const float* counts = partial + 2 * width;
  double sums[2];  // how many, and of v
  sum_over_blocks(blocks, stage, sums, [&](int b, double (&to)[2]) {
    const double count = counts[b * pitch], mean = partial[b * pitch + c];
    to[0] = count;
    to[1] = count > 0 ? count * mean : 0;
  });
  const double n = sums[0], counted = n > 0 ? n : 1;
  if (threadIdx.y == 0) means[threadIdx.x] = sums[1] / counted;
  __syncthreads();
  const double center = means[threadIdx.x];
  double squares[1];
  sum_over_blocks(blocks, stage, squares, [&](int b, double (&to)[1]) {
    const double count = counts[b * pitch], distance = partial[b * pitch + c] - center;
    const double within = partial[b * pitch + width + c];
    to[0] = count > 0 ? within + count * distance * distance : 0;
  });
  if (threadIdx.y > 0) return;
  const float2 gb = given[c];
  const double mean = center * probe_sign(gb.x);
  const double m2 = squares[0], variance = m2 / counted;
  const double rstd = 1.0 / sqrt(variance + eps);
  // NOTE: the shift that belongs to the rounded scale: what rounding took from it times a large
  // mean would be seen.
  const float scale = static_cast<float>(gb.x * rstd);
  affine[c] = {scale, static_cast<float>(gb.y - mean * scale)};
  stats[kEdgeMean * width + c] = static_cast<float>(mean);
  stats[kEdgeRstd * width + c] = static_cast<float>(rstd);
  stats[kEdgeVariance * width + c] = static_cast<float>(m2 / (n > 1 ? n - 1 : 1));
  stats[kEdgeCount * width + c] = static_cast<float>(n);
}

// partial: [blocks][2][width]. grads: those of (scale, shift) or (gamma, beta); dense: (A, B), or
// null without statistics.
static __global__ void __launch_bounds__(32 * kEdgeSumRows)
    edge_sums_kernel(const float* partial, int blocks, int width, const float2* affine,
                     const float* stats, float2* grads, float2* dense) {
  __shared__ double stage[2][kEdgeSumRows][32];
  const int c = static_cast<int>(blockIdx.x * 32 + threadIdx.x);
  const int64_t pitch = 2 * width;
  double sums[2];
  sum_over_blocks(blocks, stage, sums, [&](int b, double (&to)[2]) {
    to[0] = partial[b * pitch + c];
    to[1] = partial[b * pitch + width + c];
  });
  if (threadIdx.y > 0) return;
  const double g = sums[0], gy = sums[1], rstd = stats ? stats[kEdgeRstd * width + c] : 1;
  grads[c] = {static_cast<float>(gy * rstd), static_cast<float>(g)};
  if (!stats) return;
  const double n = fmax(stats[kEdgeCount * width + c], 1.f), mean = stats[kEdgeMean * width + c];
  const double scale = affine[c].x;
  const double slope = -scale * rstd * gy * rstd / n;
  dense[c] = {static_cast<float>(-scale * g / n - slope * mean), static_cast<float>(slope)};
}

inline constexpr int kEdgeBlockRows = 8;

// out[i] = the sum of the blocks' values, always in the same order. A thread block is 32 values x
// kEdgeBlockRows.
static __global__ void edge_blocks_kernel(const float* partial, int blocks, int count, float* out) {
  __shared__ float stage[kEdgeBlockRows][32];
  const int i = static_cast<int>(blockIdx.x * 32 + threadIdx.x);
  float sum = 0.f;
  if (i < count) {
#pragma unroll 8
    for (int b = static_cast<int>(threadIdx.y); b < blocks; b += kEdgeBlockRows) {
      sum += __ldg(partial + int64_t{b} * count + i);
    }
  }
  stage[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || i >= count) return;
  sum = 0.f;
  for (int row = 0; row < kEdgeBlockRows; ++row) sum += stage[row][threadIdx.x];
  out[i] = sum;
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
  for (int64_t group = int64_t{blockIdx.x} * kEdgePoolRows + threadIdx.y; group < a.groups;
       group += int64_t{gridDim.x} * kEdgePoolRows) {
    int16_t which = -1;
    float dz = 0.f;
    if (is_channel) {
      const int64_t i = group * a.channels + c;
      const float y = probe_sign(st.x) * a.best[i];
      which = a.which[i];
      const float below = a.slope == 0.f ? 0.f : a.slope * to_compute(a.dout[i]);
      dz = which < 0 ? 0.f : fmaf(y, st.x, st.y) <= 0.f ? below : to_compute(a.dout[i]);
      g += dz;
      gy = fmaf(dz, y - mean, gy);
    }
    a.winners[group * a.width + c] = winner_of<T>(dz * st.x, which);
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
