// k-NN (and the nearest k within a radius) by comparing every pair, for clouds of any shape.
// knn_bounded.cuh is faster in three dimensions.
//
// Up to 32 neighbours (knn_brute_kernel): a warp serves Q queries at once, so that a point read
// from shared memory is used Q times. Two passes over the cloud: the first keeps nothing but the
// smallest distance of each of 32 U bins per query; the k-th smallest of those bounds the k-th
// neighbour, and only about 1.2 k points pass that bound in the second. They are sorted once.
// Anything else (knn_brute_any_kernel): one warp a query, a list of the k best in shared memory.
#pragma once

#include "csrc/cuda/points/neighbours/point_tile.cuh"

namespace fusedops {

inline constexpr int kBruteWarps = 8;
inline constexpr int kBruteRoom = 64;  // candidates a query may hold before a sort
inline constexpr int kBruteMaxK = 32;
inline constexpr int kBruteMaxDim = 32;         // of knn_brute_kernel
inline constexpr int kBruteTileFloats = 12288;  // 48 KB of coordinates

// Squared distances of point j of the tile to Q queries, summed in the order of the coordinates.
template <int Q>
__device__ __forceinline__ void tile_distances(const float* tile, int room, int j, int dim,
                                               const float* query, float (&out)[Q]) {
#pragma unroll
  for (int q = 0; q < Q; ++q) out[q] = 0.0f;
  for (int d = 0; d < dim; ++d) {
    const float x = tile[d * room + j];
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      const float delta = query[q * dim + d] - x;
      out[q] = fmaf(delta, delta, out[q]);
    }
  }
}

// NOTE: the sorts are not inlined. Q copies of each in two loops made a kernel of 280 KB, which no
// instruction cache holds.

// Sorts a query's candidates; lane i gets the i-th smallest of the 32 smallest.
template <class = void>
__device__ __noinline__ uint64_t sort_candidates(const uint64_t* keys, int count) {
  const int lane = threadIdx.x % 32;
  const uint64_t none = ~uint64_t{0};
  uint64_t best = warp_sort(lane < count ? keys[lane] : none, lane);
  if (count > 32) {
    best = warp_merge(best, warp_sort(lane + 32 < count ? keys[lane + 32] : none, lane), lane);
  }
  return best;
}

// Cuts a query's candidates down to the k best; returns the distance bits of the k-th.
template <class = void>
__device__ __noinline__ uint32_t keep_best(uint64_t* keys, int count, int k) {
  const uint64_t best = sort_candidates(keys, count);
  __syncwarp();
  keys[threadIdx.x % 32] = best;
  __syncwarp();
  return static_cast<uint32_t>(__shfl_sync(kFullWarp, best, k - 1) >> 32);
}

// The k-th smallest of the 64 bins of a warp, two a lane, in bits, plus one: what a candidate must
// be below. b is infinity for 32 bins.
template <class = void>
__device__ __noinline__ uint32_t bin_limit(float a, float b, int k) {
  const int lane = threadIdx.x % 32;
  const float sorted = warp_merge(warp_sort(a, lane), warp_sort(b, lane), lane);
  return __float_as_uint(__shfl_sync(kFullWarp, sorted, k - 1)) + 1;
}

template <int Q, int U>
__global__ void __launch_bounds__(kBruteWarps * 32)
    knn_brute_kernel(Clouds points, Clouds queries, DType dtype, NeighbourOutput<float> out,
                     uint32_t limit, int room, int group_bits) {
  extern __shared__ float tile[];  // [dim][room], then the queries [warps][Q][dim]
  __shared__ uint64_t candidates[kBruteWarps][Q][kBruteRoom];
  const int dim = static_cast<int>(points.dim);
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int k = static_cast<int>(out.k);
  const RowGroup group = find_row_group(queries, blockIdx.x, group_bits);
  if (group.first >= group.length) return;
  const int64_t first_query = group.first + warp * Q;
  const int64_t query_row = queries.first_row(group.cloud) + first_query;
  const int64_t point_row = points.first_row(group.cloud);
  const int64_t length = points.length(group.cloud);

  // Queries; one beyond the end finds nothing, since it is NaN
  float* query = tile + dim * room + warp * Q * dim;
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    const bool valid = first_query + q < group.length;
    for (int d = lane; d < dim; d += 32) {
      query[q * dim + d] =
          valid ? load_as<float>(queries.points, dtype, (query_row + q) * dim + d) : NAN;
    }
  }

  // First pass: the smallest distance of every bin
  float bins[Q][U];
#pragma unroll
  for (int q = 0; q < Q; ++q) {
#pragma unroll
    for (int u = 0; u < U; ++u) bins[q][u] = INFINITY;
  }
  for (int64_t start = 0; start < length; start += room) {
    __syncthreads();
    load_tile<kBruteWarps * 32>(points, dtype, point_row + start, length - start, room, tile);
    __syncthreads();
    const int count = static_cast<int>(min(length - start, int64_t{room}));
#pragma unroll 2
    for (int j = lane; j < count; j += 32 * U) {
#pragma unroll
      for (int u = 0; u < U; ++u) {
        float d[Q];
        tile_distances<Q>(tile, room, j + 32 * u, dim, query, d);
#pragma unroll
        for (int q = 0; q < Q; ++q) bins[q][u] = fminf(bins[q][u], d[q]);
      }
    }
  }
  uint32_t bound[Q];
  int held[Q];
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    bound[q] = min(bin_limit(bins[q][0], U > 1 ? bins[q][U - 1] : INFINITY, k), limit);
    held[q] = 0;
  }

  // Second pass: what is below the bound
  const bool reload = length > room;
  for (int64_t start = 0; start < length; start += room) {
    if (reload) {
      __syncthreads();
      load_tile<kBruteWarps * 32>(points, dtype, point_row + start, length - start, room, tile);
      __syncthreads();
    }
    const int count = static_cast<int>(min(length - start, int64_t{room}));
    const int rounded = (count + 31) / 32 * 32;
    for (int j = lane; j < rounded; j += 32) {
      float d[Q];
      tile_distances<Q>(tile, room, j, dim, query, d);
      bool some = false;
#pragma unroll
      for (int q = 0; q < Q; ++q) some |= __float_as_uint(d[q]) < bound[q];
      if (!__any_sync(kFullWarp, some)) continue;
#pragma unroll
      for (int q = 0; q < Q; ++q) {
        unsigned mask = __ballot_sync(kFullWarp, __float_as_uint(d[q]) < bound[q]);
        if (mask == 0) continue;
        if (held[q] + __popc(mask) > kBruteRoom) {
          // NOTE: candidates come in the order of their index: one as far as the k-th is too late
          bound[q] = keep_best(candidates[warp][q], held[q], k);
          held[q] = k;
          mask = __ballot_sync(kFullWarp, __float_as_uint(d[q]) < bound[q]);
        }
        if (mask >> lane & 1) {
          candidates[warp][q][held[q] + __popc(mask & ((1u << lane) - 1))] =
              candidate_key<Select::kNearest>(d[q], static_cast<uint32_t>(start + j));
        }
        held[q] += __popc(mask);
      }
    }
  }

  // Sort and write
  const uint64_t empty = empty_key<Select::kNearest, float>(limit);
  const int64_t base = points.index_base(group.cloud);
  __syncwarp();
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    if (first_query + q >= group.length) break;
    const uint64_t key = min(sort_candidates(candidates[warp][q], held[q]), empty);
    const uint64_t first = __shfl_sync(kFullWarp, key, 0);
    if (lane < k) {
      write_neighbour<Select::kNearest>(out, query_row + q, lane, key, first, empty, base);
    }
    if (out.counts && lane == 0) out.counts[query_row + q] = min(held[q], k);
  }
}

// S is how the points are stored, T what distances are computed in.
template <class S, class T>
__global__ void knn_brute_any_kernel(Clouds points, Clouds queries, NeighbourOutput<T> out,
                                     KeyBits<T> limit, bool manhattan, int capacity,
                                     int group_bits) {
  extern __shared__ __align__(16) char storage[];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const RowGroup group = find_row_group(queries, blockIdx.x, group_bits);
  const int64_t position = group.first + warp;
  if (position >= group.length) return;
  const int64_t row = queries.first_row(group.cloud) + position;
  const int64_t length = points.length(group.cloud);
  const int64_t dim = points.dim;
  const S* cloud = static_cast<const S*>(points.points) + points.first_row(group.cloud) * dim;
  const S* query = static_cast<const S*>(queries.points) + row * dim;

  WarpCollector<KeyOf<T>> best(reinterpret_cast<KeyOf<T>*>(storage) + int64_t{warp} * capacity,
                               capacity, static_cast<int>(out.k),
                               empty_key<Select::kNearest, T>(limit));
  for (int64_t start = 0; start < length; start += 32) {
    const int64_t i = start + lane;
    T d = i < length ? T{0} : static_cast<T>(NAN);
    if (i < length) {
      for (int64_t c = 0; c < dim; ++c) {
        const T delta =
            static_cast<T>(to_compute(query[c])) - static_cast<T>(to_compute(cloud[i * dim + c]));
        d = manhattan ? d + (delta < 0 ? -delta : delta) : fma(delta, delta, d);
      }
    }
    // NOTE: D = 0 leaves d = 0 for every point: ties, lowest index first
    best.push(candidate_key<Select::kNearest, T>(d, static_cast<uint32_t>(i)), lane);
  }
  best.template write<Select::kNearest, T>(out, row, points.index_base(group.cloud), lane);
}

}  // namespace fusedops
