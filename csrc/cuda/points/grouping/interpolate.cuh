// out[b, m] = sum over k of weights[b, m, k] * features[b, idx[b, m, k]], and the gradient of the
// weights; that of the features is a sum by destination (scatter_rows.cuh).
#pragma once

#include <algorithm>

#include "csrc/common/device/cloud.cuh"
#include "csrc/common/grid_limits.h"
#include "csrc/common/int_math.h"

namespace fusedops {

inline constexpr int kInterpolateThreads = 256;
inline constexpr int kInterpolateUnroll = 4;  // neighbours

template <class T>
struct Interpolate {
  const T* features;    // [B][n][channels]
  const int64_t* idx;   // [B][queries][neighbours]
  const void* weights;  // [B][queries][neighbours]
  bool wide_weights;    // they are float32 beside halves
  int64_t clouds, n, queries, neighbours, channels;
};

// Adds neighbours k .. k + kInterpolateUnroll, their rows in flight together.
template <class T, int V>
__device__ __forceinline__ void add_neighbours(const Interpolate<T>& a, int64_t b, int64_t query,
                                               int64_t k, int64_t channel, Compute<T> (&sum)[V]) {
  int64_t row[kInterpolateUnroll];
  Compute<T> weight[kInterpolateUnroll];
  Vec<T, V> value[kInterpolateUnroll];
#pragma unroll
  for (int u = 0; u < kInterpolateUnroll; ++u) {
    const int64_t at = query * a.neighbours + min(k + u, a.neighbours - 1);
    row[u] = k + u < a.neighbours ? __ldg(a.idx + at) : -1;
    weight[u] = load_side<T>(a.weights, a.wide_weights, at);
  }
#pragma unroll
  for (int u = 0; u < kInterpolateUnroll; ++u) {
    const bool valid = row[u] >= 0 && row[u] < a.n;
    value[u] = {};
    if (valid) {
      const int64_t from = (b * a.n + row[u]) * a.channels + channel;
      value[u] = *reinterpret_cast<const Vec<T, V>*>(a.features + from);
    } else {
      weight[u] = 0;  // also where it is not finite
    }
  }
#pragma unroll
  for (int u = 0; u < kInterpolateUnroll; ++u) {
#pragma unroll
    for (int v = 0; v < V; ++v) sum[v] += weight[u] * to_compute(value[u].value[v]);
  }
}

// `lanes` threads per query, V channels each at a time.
template <class T, int V>
__global__ void __launch_bounds__(kInterpolateThreads)
    interpolate_kernel(Interpolate<T> a, T* __restrict__ out, int lanes) {
  const int lane = threadIdx.x % lanes;
  const int64_t m = int64_t{blockIdx.x} * (kInterpolateThreads / lanes) + threadIdx.x / lanes;
  if (m >= a.queries) return;
  for (int64_t b = blockIdx.y; b < a.clouds; b += gridDim.y) {
    const int64_t query = b * a.queries + m;
    for (int64_t channel = lane * V; channel < a.channels; channel += int64_t{lanes} * V) {
      Compute<T> sum[V] = {};
      for (int64_t k = 0; k < a.neighbours; k += kInterpolateUnroll) {
        add_neighbours<T, V>(a, b, query, k, channel, sum);
      }
      Vec<T, V> result;
#pragma unroll
      for (int v = 0; v < V; ++v) result.value[v] = from_compute<T>(sum[v]);
      *reinterpret_cast<Vec<T, V>*>(out + query * a.channels + channel) = result;
    }
  }
}

// dweights[b, m, k] = dot(dout[b, m], features[b, idx]); one warp per query.
template <class T, int V>
__global__ void __launch_bounds__(kInterpolateThreads)
    interpolate_dweights_kernel(Interpolate<T> a, const T* __restrict__ dout,
                                void* __restrict__ dweights) {
  const int lane = threadIdx.x % 32;
  const int64_t m = int64_t{blockIdx.x} * (kInterpolateThreads / 32) + threadIdx.x / 32;
  if (m >= a.queries) return;
  for (int64_t b = blockIdx.y; b < a.clouds; b += gridDim.y) {
    const int64_t query = b * a.queries + m;
    for (int64_t k = 0; k < a.neighbours; ++k) {
      const int64_t row = a.idx[query * a.neighbours + k];
      Compute<T> sum = 0;
      if (row >= 0 && row < a.n) {
        for (int64_t channel = lane * V; channel < a.channels; channel += 32 * V) {
          const auto x = *reinterpret_cast<const Vec<T, V>*>(
              a.features + (b * a.n + row) * a.channels + channel);
          const auto dy = *reinterpret_cast<const Vec<T, V>*>(dout + query * a.channels + channel);
#pragma unroll
          for (int v = 0; v < V; ++v) sum += to_compute(x.value[v]) * to_compute(dy.value[v]);
        }
      }
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
      if (lane != 0) continue;
      if (a.wide_weights) {
        static_cast<float*>(dweights)[query * a.neighbours + k] = static_cast<float>(sum);
      } else {
        static_cast<T*>(dweights)[query * a.neighbours + k] = from_compute<T>(sum);
      }
    }
  }
}

inline dim3 interpolate_grid(int64_t queries, int64_t clouds, int lanes) {
  return dim3(static_cast<unsigned>(ceil_div(queries, kInterpolateThreads / lanes)),
              static_cast<unsigned>(std::min(clouds, kMaxGridY)));
}

template <class T, int V>
void launch_interpolate(const Interpolate<T>& a, T* out, cudaStream_t stream) {
  int lanes = 1;
  while (lanes < 32 && int64_t{lanes} * V < a.channels) lanes *= 2;
  interpolate_kernel<T, V>
      <<<interpolate_grid(a.queries, a.clouds, lanes), kInterpolateThreads, 0, stream>>>(a, out,
                                                                                         lanes);
}

template <class T, int V>
void launch_interpolate_dweights(const Interpolate<T>& a, const T* dout, void* dweights,
                                 cudaStream_t stream) {
  interpolate_dweights_kernel<T, V>
      <<<interpolate_grid(a.queries, a.clouds, 32), kInterpolateThreads, 0, stream>>>(a, dout,
                                                                                      dweights);
}

}  // namespace fusedops
