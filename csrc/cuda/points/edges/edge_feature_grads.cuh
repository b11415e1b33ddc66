// The gradient of features that are a part of an edge MLP's operands: the gradient of y_1 summed
// over the edges of a point,
//   du = scale * sums + [statistics] (count A + B (count W_f features + W_x r)),
// count and r being the edges' moments, times W_f. What is not a sum over channels of `sums` is
// linear in few values of the point, whose factors a block forms first: du itself is in no memory.
#pragma once

#include "csrc/common/device/vec.cuh"
#include "csrc/cuda/points/edges/edge_problem.h"

namespace fusedops {

inline constexpr int kEdgeFeatureThreads = 256;
inline constexpr int kEdgeFeatureSlice = 128;  // channels at a time
// What is linear: the count, its products with the features, r.
inline constexpr int kEdgeFeatureTerms = 1 + kEdgeMostFeatures + 3;

template <class T>
struct EdgeFeatureGrads {
  const float* sums;      // [rows][width]
  const float2* affine;   // its scale, or null for 1
  const float2* dense;    // (A, B), or null
  const float4* moments;  // [rows], where dense is there
  const T* first_weight;  // [2][width][kEdgePlane]: W_x and W_f
  const T* features;      // [rows][count]
  int64_t rows;
  int width, count;
  T* out;  // [rows][count]
};

// kColumns: at least the number of features, a multiple of 4.
template <int kColumns>
struct alignas(16) EdgeFeatureChannel {
  float weight[kColumns], offsets[3], scale, a, b;

  template <class T>
  __device__ __forceinline__ void load(const EdgeFeatureGrads<T>& p, int c) {
    const T* from = p.first_weight + int64_t{c} * kEdgePlane;
    const T* behind = from + int64_t{p.width} * kEdgePlane;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      weight[i] = 0.f;
      if (i < p.count) weight[i] = to_compute(i < kEdgePlane ? behind[i] : from[i - 2]);
    }
#pragma unroll
    for (int d = 0; d < 3; ++d) offsets[d] = to_compute(from[d]);
    scale = p.affine ? p.affine[c].x : 1.f;
    const float2 ab = p.dense ? p.dense[c] : float2{};
    a = ab.x;
    b = ab.y;
  }
  // What the channel has of a term: in order A, B W_f, B W_x.
  __device__ __forceinline__ float factor(int term) const {
    if (term == 0) return a;
    if (term > kEdgeMostFeatures) return b * offsets[term - 1 - kEdgeMostFeatures];
    return term <= kColumns ? b * weight[term - 1] : 0.f;
  }
};

// A thread has a row.
template <class T, int kColumns>
__global__ void __launch_bounds__(kEdgeFeatureThreads)
    edge_feature_grads_kernel(EdgeFeatureGrads<T> p) {
  static_assert(kEdgeFeatureTerms * kColumns <= kEdgeFeatureThreads);
  __shared__ EdgeFeatureChannel<kColumns> channels[kEdgeFeatureSlice];
  __shared__ float terms[kEdgeFeatureTerms][kColumns];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = int64_t{blockIdx.x} * kEdgeFeatureThreads + thread;
  const bool is_row = row < p.rows, is_term = p.dense && thread < kEdgeFeatureTerms * kColumns;
  float sum[kColumns] = {}, term = 0.f;
  for (int start = 0; start < p.width; start += kEdgeFeatureSlice) {
    const int count = min(kEdgeFeatureSlice, p.width - start);
    __syncthreads();  // all have read the slice before
    if (thread < count) channels[thread].load(p, start + thread);
    __syncthreads();
    if (is_term) {
      for (int c = 0; c < count; ++c) {
        term = fmaf(channels[c].factor(thread / kColumns), channels[c].weight[thread % kColumns],
                    term);
      }
    }
    if (!is_row) continue;
    const float4* from = reinterpret_cast<const float4*>(p.sums + row * p.width + start);
#pragma unroll 2
    for (int c = 0; c < count; c += 4) {
      const float4 four = __ldg(from + c / 4);
      const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const EdgeFeatureChannel<kColumns>& channel = channels[c + v];
        const float value = values[v] * channel.scale;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) sum[i] = fmaf(value, channel.weight[i], sum[i]);
      }
    }
  }
  if (is_term) terms[thread / kColumns][thread % kColumns] = term;
  __syncthreads();
  if (!is_row) return;
  const T* own = p.features + row * p.count;
  if (p.dense) {
    const float4 m = __ldg(p.moments + row);
    const auto add = [&](float value, int which) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) sum[i] = fmaf(value, terms[which][i], sum[i]);
    };
    add(m.x, 0);
    add(m.y, kEdgeMostFeatures + 1);
    add(m.z, kEdgeMostFeatures + 2);
    add(m.w, kEdgeMostFeatures + 3);
    // NOTE: a point without edges may lie anywhere, even nowhere.
    for (int i = 0; i < p.count && m.x > 0.f; ++i) add(m.x * to_compute(own[i]), 1 + i);
  }
  T* out = p.out + row * p.count;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    if (i < p.count) out[i] = from_compute<T>(sum[i]);
  }
}

}  // namespace fusedops
