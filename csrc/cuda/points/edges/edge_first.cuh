// What is left of the gradient of an edge MLP's first layer once dz_1 is known by rows: sums over
// the rows of a group, and the closed forms by point and by group.
#pragma once

#include "csrc/common/device/vec.cuh"
#include "csrc/cuda/points/edges/edge_norm.cuh"

namespace fusedops {

inline constexpr int kEdgeFirstThreads = 256;
inline constexpr int kEdgeVector = 8;  // channels of a thread

// (weight, weight * offset) of every edge that counts: [groups][k].
static __global__ void edge_moments_kernel(const int4* list, const int* ends, int groups, int k,
                                           const float* points, const float* centers, float4* out) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= ends[groups - 1]) return;
  const int4 record = list[row];
  const float w = __int_as_float(record.w);
  float offset[3] = {};
  if (points) {
    for (int d = 0; d < 3; ++d) {
      const float center = centers ? centers[int64_t{record.y} * 3 + d] : 0.f;
      offset[d] = points[int64_t{record.x} * 3 + d] - center;
    }
  }
  out[int64_t{record.y} * k + record.z] = {w, w * offset[0], w * offset[1], w * offset[2]};
}

inline constexpr int kEdgeMomentLanes = 16;  // of a point

// Sums of weights and of weighted offsets over the edges to a point, [points]: lists of them by
// point (edge_lists), where they are by group.
struct EdgePointMoments {
  const uint32_t* entries;
  const uint2* ranges;
  const int4* list;
  const int* ends;
  int count, k;          // count: of the points
  const float* points;   // [count][3], or null
  const float* centers;  // [groups][3], or null for 0
  float4* out;
};

static __global__ void __launch_bounds__(kEdgeFirstThreads)
    edge_point_moments_kernel(EdgePointMoments a) {
  const int64_t thread = int64_t{blockIdx.x} * kEdgeFirstThreads + threadIdx.x;
  const int64_t point = thread / kEdgeMomentLanes;
  const int lane = static_cast<int>(thread % kEdgeMomentLanes);
  const bool exists = point < a.count;
  const uint2 range = exists ? a.ranges[point] : uint2{};
  float at[3] = {}, sum[4] = {};
  if (exists && a.points) {
    for (int d = 0; d < 3; ++d) at[d] = __ldg(a.points + point * 3 + d);
  }
#pragma unroll 4
  for (uint32_t p = range.x + lane; p < range.y; p += kEdgeMomentLanes) {
    const uint32_t entry = __ldg(a.entries + p), group = entry / a.k;
    float weight = 1.f;
    if (entry == group * a.k) {  // the group's first entry, which has its repeats
      const int start = group > 0 ? __ldg(a.ends + group - 1) : 0;
      weight = __int_as_float(__ldg(a.list + start).w);
    }
    sum[3] += weight;
    if (!a.points) continue;
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      const float center = a.centers ? __ldg(a.centers + int64_t{group} * 3 + d) : 0.f;
      sum[d] = fmaf(weight, at[d] - center, sum[d]);
    }
  }
#pragma unroll
  for (int v = 0; v < 4; ++v) {
#pragma unroll
    for (int mask = kEdgeMomentLanes / 2; mask > 0; mask /= 2) {
      sum[v] += __shfl_xor_sync(0xffffffffu, sum[v], mask);
    }
  }
  if (exists && lane == 0) a.out[point] = {sum[3], sum[0], sum[1], sum[2]};
}

// Rows of T by edge, [groups][k][width]: the gradients of the maxima that it has.
template <class T>
__global__ void edge_winners_kernel(const int* winners, const int4* list, const int* ends,
                                    int groups, int k, int width, T* rows) {
  const int pieces = width / kEdgeVector;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t row = i / pieces;
  if (row >= ends[groups - 1]) return;
  const int channel = static_cast<int>(i % pieces) * kEdgeVector;
  const int4 record = list[row];
  const int* from = winners + int64_t{record.y} * width + channel;
  alignas(16) unsigned short values[kEdgeVector];
#pragma unroll
  for (int c = 0; c < kEdgeVector; ++c) {
    const int won = __ldg(from + c);
    values[c] = won >> 16 == record.z ? static_cast<unsigned short>(won) : 0;
  }
  *reinterpret_cast<uint4*>(rows + (int64_t{record.y} * k + record.z) * width + channel) =
      *reinterpret_cast<const uint4*>(values);
}

// out[g] = the sum of rows[e], or of weight * rows[point of e], over the edges e of group g that
// count; rows are by edge, [groups][k], or by point.
template <class T>
struct EdgeGroupSums {
  const T* rows;
  const int4* list;
  const int* ends;
  int groups, k, width;
  bool gathers;
  float* out;
};

template <class T>
__global__ void edge_group_sums_kernel(EdgeGroupSums<T> a) {
  constexpr int kV = 16 / sizeof(T);
  const int pieces = a.width / kV;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int group = static_cast<int>(i / pieces);
  if (group >= a.groups) return;
  const int channel = static_cast<int>(i % pieces) * kV;
  const int first = group > 0 ? __ldg(a.ends + group - 1) : 0, end = __ldg(a.ends + group);
  float sum[kV] = {};
#pragma unroll 4
  for (int row = first; row < end; ++row) {
    const int4 record = __ldg(a.list + row);
    const float w = a.gathers ? __int_as_float(record.w) : 1.f;
    const int64_t from = a.gathers ? record.x : int64_t{record.y} * a.k + record.z;
    const auto values = *reinterpret_cast<const Vec<T, kV>*>(a.rows + from * a.width + channel);
#pragma unroll
    for (int v = 0; v < kV; ++v) sum[v] = fmaf(w, to_compute(values.value[v]), sum[v]);
  }
  float4* to = reinterpret_cast<float4*>(a.out + int64_t{group} * a.width + channel);
#pragma unroll
  for (int v = 0; v < kV / 4; ++v) {
    to[v] = {sum[4 * v], sum[4 * v + 1], sum[4 * v + 2], sum[4 * v + 3]};
  }
}

// The gradient of y_1 summed over the edges of a point (or of a group):
//   scale * sums + [statistics] (count A + B (count own + others + W_x r)),
// count and r being the edges' moments; and the sums of it times coordinates.
template <class T>
struct EdgeClose {
  const float* sums;         // [rows][width]
  const float2* affine;      // its scale, or null for 1
  const float2* dense;       // (A, B), or null
  const float4* moments;     // [rows]
  const float* own;          // [rows][width] in fragment order, or null
  const float* others;       // [rows][width] in fragment order, or null
  const T* first_weight;     // [planes][width][kEdgePlane]: W_x in the first, or null
  const float* coordinates;  // [rows][3], or null
  int64_t rows;
  int width;
  float* out;      // [rows][width]
  float* partial;  // [grid.x][width][3], where there are coordinates
};

__device__ __forceinline__ int fragment_place(int channel) {
  const int within = channel % 32;
  return channel - within + within % 8 / 2 * 8 + within / 8 * 2 + within % 2;
}

inline constexpr int kEdgeCloseRows = 8;
inline constexpr int kEdgeCloseUnroll = 4;  // rows of a thread in flight

// What a thread reads of a row.
struct EdgeCloseRow {
  float sum, own, others;
  float4 moments;

  template <class T>
  __device__ __forceinline__ void load(const EdgeClose<T>& a, int64_t row, int channel, int place) {
    sum = __ldg(a.sums + row * a.width + channel);
    if (!a.dense) return;
    moments = __ldg(a.moments + row);
    if (a.own) own = __ldg(a.own + row * a.width + place);
    if (a.others) others = __ldg(a.others + row * a.width + place);
  }
};

template <class T>
__global__ void __launch_bounds__(32 * kEdgeCloseRows) edge_close_kernel(EdgeClose<T> a) {
  __shared__ float sums[3][kEdgeCloseRows][32];
  const int c = static_cast<int>(blockIdx.y * 32 + threadIdx.x);
  const int place = fragment_place(c);
  const float scale = a.affine ? a.affine[c].x : 1.f;
  const float2 ab = a.dense ? a.dense[c] : float2{};
  float w[3] = {}, total[3] = {};
  if (a.dense && a.first_weight) {
    const T* from = a.first_weight + c * kEdgePlane;
    for (int d = 0; d < 3; ++d) w[d] = to_compute(from[d]);
  }
  // What the rows read is on its way before any of it is used.
  const int64_t stride = int64_t{gridDim.x} * kEdgeCloseRows;
  for (int64_t first = int64_t{blockIdx.x} * kEdgeCloseRows + threadIdx.y; first < a.rows;
       first += kEdgeCloseUnroll * stride) {
    EdgeCloseRow given[kEdgeCloseUnroll];
#pragma unroll
    for (int u = 0; u < kEdgeCloseUnroll; ++u) {
      if (first + u * stride < a.rows) given[u].load(a, first + u * stride, c, place);
    }
#pragma unroll
    for (int u = 0; u < kEdgeCloseUnroll; ++u) {
      const int64_t row = first + u * stride;
      if (row >= a.rows) break;
      float value = scale * given[u].sum;
      if (a.dense) {
        const float4 m = given[u].moments;
        float y = fmaf(w[0], m.y, fmaf(w[1], m.z, w[2] * m.w));
        if (a.own && m.x > 0.f) y = fmaf(m.x, given[u].own, y);
        if (a.others) y += given[u].others;
        value += fmaf(m.x, ab.x, ab.y * y);
      }
      a.out[row * a.width + c] = value;
      // NOTE: a point without edges may lie anywhere, even nowhere.
      if (a.coordinates && value != 0.f) {
#pragma unroll
        for (int d = 0; d < 3; ++d) {
          total[d] = fmaf(value, __ldg(a.coordinates + row * 3 + d), total[d]);
        }
      }
    }
  }
  if (!a.coordinates) return;
  for (int d = 0; d < 3; ++d) sums[d][threadIdx.y][threadIdx.x] = total[d];
  __syncthreads();
  if (threadIdx.y < 3) {
    float sum = 0.f;
    for (int row = 0; row < kEdgeCloseRows; ++row) sum += sums[threadIdx.y][row][threadIdx.x];
    a.partial[(int64_t{blockIdx.x} * a.width + c) * 3 + threadIdx.y] = sum;
  }
}

// ---- features ----
//
// Their gradient, where they are a part of the operands, is the gradient of y_1 summed over the
// edges of a point,
//   du = scale * sums + [statistics] (count A + B (count W_f features + W_x r)),
// times W_f. What is not a sum over channels of `sums` is linear in few values of the point, whose
// factors a block forms first: du itself is in no memory.

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
