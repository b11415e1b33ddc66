// What k-NN by Tensor Cores is made of: rows as they read them, where a block keeps what it holds,
// products of tiles, exact distances.
#pragma once

#include <cuda_bf16.h>

#include "csrc/common/device/async_copy.cuh"
#include "csrc/common/device/mma.cuh"
#include "csrc/cuda/points/neighbours.cuh"

namespace fusedops {

inline constexpr int kFeatureWarps = 4;
inline constexpr int kFeatureRows = 16;  // queries of a warp
inline constexpr int kFeatureTile = 64;  // points
inline constexpr int kFeatureGroupBits = 6;
inline constexpr int kFeaturePad = 8;  // of a row in shared memory, against bank conflicts

struct FeatureRows {
  __nv_bfloat16* high;  // (rows, width)
  __nv_bfloat16* low;   // the rest of the value, or null where there is none
  float* norm;          // (rows,) lower bound of |row|^2, NaN where it is not finite
};

__host__ __device__ constexpr int feature_width(int dim) { return (dim + 15) / 16 * 16; }

inline float feature_slack(int dim, bool split) {
  return static_cast<float>(dim + 64) * 0x1p-21f + (split ? 0x1p-14f : 0.0f);
}

// One warp a row. S: how the row is stored.
template <class S>
__global__ void feature_prepare_kernel(const S* __restrict__ rows, int64_t count, int dim,
                                       float slack, FeatureRows out) {
  const int lane = threadIdx.x % 32;
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (row >= count) return;
  const int width = feature_width(dim);
  float norm = 0.0f;
  for (int d = lane; d < width; d += 32) {
    const float value = d < dim ? to_compute(rows[row * dim + d]) : 0.0f;
    const __nv_bfloat16 high = __float2bfloat16_rn(value);
    out.high[row * width + d] = high;
    if (out.low) out.low[row * width + d] = __float2bfloat16_rn(value - __bfloat162float(high));
    norm = fmaf(value, value, norm);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) norm += __shfl_xor_sync(kFullWarp, norm, step);
  if (lane == 0) out.norm[row] = norm < INFINITY ? norm * (1.0f - slack) : NAN;
}

// Shared memory of a block: queries, points, lists, scratch, candidates, norms.
struct FeatureLayout {
  int width, stride;
  int splits;           // parts of a value: high, low
  int stages;           // of copies of points
  int list;             // best keys of a query: 32, 64 or 128
  int room;             // candidates of a query before they are ranked
  int scratch;          // keys, a power of two of at least list + room; 0 where a list fits a warp
  bool staged = false;  // candidates are ranked from where points were: lists of 32, aligned rows

  __host__ __device__ int matrix_bytes() const {
    return kFeatureTile * stride * 2;  // of one part of 64 rows
  }
  // The bytes of a staged row at most: points of a stage are as many rows.
  __host__ __device__ int staged_bytes() const { return stride * 2 * splits * stages; }
  __host__ __device__ int lists_at() const { return matrix_bytes() * splits * (1 + stages); }
  __host__ __device__ int scratch_at() const { return lists_at() + kFeatureTile * list * 8; }
  __host__ __device__ int buffers_at() const { return scratch_at() + kFeatureWarps * scratch * 8; }
  __host__ __device__ int norms_at() const { return buffers_at() + kFeatureTile * room * 4; }
  __host__ __device__ int bytes() const {
    // norms of the points; counts, limits and norms of the queries
    return norms_at() + (stages + 3) * kFeatureTile * 4;
  }
};

// Starts copying 64 rows, part after part; rows from `count` on become zeros.
__device__ __forceinline__ void copy_rows(const FeatureRows& rows, int64_t first, int64_t count,
                                          const FeatureLayout& layout, __nv_bfloat16* to) {
  const int chunks = layout.width / 8;
  for (int i = threadIdx.x; i < kFeatureTile * chunks * layout.splits; i += blockDim.x) {
    const int place = i / chunks;  // over all parts
    const int row = place % kFeatureTile;
    const int at = i % chunks * 8;
    const bool valid = row < count;
    const __nv_bfloat16* from = place >= kFeatureTile ? rows.low : rows.high;
    copy_async(shared_address(to + place * layout.stride + at),
               from + (valid ? (first + row) * layout.width + at : 0), valid ? 16 : 0);
  }
}

// Products of the warp's 16 queries with 64 points, both in shared memory.
template <bool Split>
__device__ __forceinline__ void tile_products(const __nv_bfloat16* query_tile,
                                              const __nv_bfloat16* point_tile, int width,
                                              int stride, int lane, int warp,
                                              float (&product)[kFeatureTile / 8][4]) {
  constexpr int kPairs = kFeatureTile / 16;
  const int part = kFeatureTile * stride;  // elements of the high parts, before the low ones
  const __nv_bfloat16* a_row =
      query_tile + (warp * kFeatureRows + lane % 16) * stride + lane / 16 * 8;
  const __nv_bfloat16* b_row = point_tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
  const auto multiply = [&](const uint32_t (&a)[4], const uint32_t (&b)[kPairs][4]) {
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      mma_k16<__nv_bfloat16>(product[2 * n], a, b[n][0], b[n][1]);
      mma_k16<__nv_bfloat16>(product[2 * n + 1], a, b[n][2], b[n][3]);
    }
  };
  for (int at = 0; at < width; at += 16) {
    uint32_t a[4];
    uint32_t b[kPairs][4];
    load_matrices(a, a_row + at);
#pragma unroll
    for (int n = 0; n < kPairs; ++n) load_matrices(b[n], b_row + n * 16 * stride + at);
    multiply(a, b);
    if constexpr (Split) {
      uint32_t low[4];
      load_matrices(low, a_row + part + at);
      multiply(low, b);
#pragma unroll
      for (int n = 0; n < kPairs; ++n) load_matrices(b[n], b_row + part + n * 16 * stride + at);
      multiply(a, b);
    }
  }
}

// The exact distance of a pair, summed like in every other algorithm.
template <class S>
__device__ __forceinline__ float exact_distance(const S* __restrict__ query,
                                                const S* __restrict__ point, int dim,
                                                bool vectors) {
  float d = 0.0f;
  if (vectors) {
#pragma unroll 4
    for (int c = 0; c < dim; c += 4) {
      const auto q = *reinterpret_cast<const Vec<S, 4>*>(query + c);
      const auto p = *reinterpret_cast<const Vec<S, 4>*>(point + c);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float delta = to_compute(q.value[i]) - to_compute(p.value[i]);
        d = fmaf(delta, delta, d);
      }
    }
  } else {
    for (int c = 0; c < dim; ++c) {
      const float delta = to_compute(query[c]) - to_compute(point[c]);
      d = fmaf(delta, delta, d);
    }
  }
  return d;
}

}  // namespace fusedops
