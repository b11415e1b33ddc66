// k-NN (and the nearest k within a radius) by comparing every pair, for three coordinates in
// float32 and up to 32 neighbours.
//
// A warp serves Q queries at once and passes over the cloud twice, with values of pair_bound.cuh
// instead of distances. The first pass keeps the least value in each of 128 bins a query; the k-th
// smallest of those bounds the k-th neighbour. Point j belongs to bin j % 128, so that the second
// pass reads only the points of bins that reach the bound: about k bins, and little more than k
// points pass. Those are measured, sorted once and written.
#pragma once

#include "csrc/cuda/points/neighbours/grid_search.cuh"
#include "csrc/cuda/points/neighbours/pair_bound.cuh"

namespace fusedops {

inline constexpr int kBoundedWarps = 16;
inline constexpr int kBins = 128;
inline constexpr int kBinSets = kBins / 32;
inline constexpr int kBoundedTile = 32 * kBins;  // points: one a lane and bin
inline constexpr int kBoundedRoom = 96;          // candidates of a query before they are ranked
// Rows of 128 points, padded so that neither a row nor a column meets a bank twice
inline constexpr int kBinRowBytes = (kBins + 1) * 16;

// One cloud as it is stored, to measure points of it.
struct MeasuredCloud {
  const void* points;
  DType dtype;
  int64_t first_row;

  __device__ __forceinline__ float4 load(int64_t position) const {
    return load_point(points, dtype, first_row + position);
  }
  __device__ __forceinline__ uint64_t key(const float4& query, uint32_t position) const {
    const float4 at = load(position);
    const float d = point_distance<false>(query.x, query.y, query.z, {at.x, at.y, at.z, 0});
    return candidate_key<Select::kNearest>(d, position);
  }
};

// What a warp keeps of one query, in shared memory.
struct BoundedQuery {
  float4 exact;  // the query; NaN where there is none, which finds nothing
  BoundQuery bounds;
  float bound;                  // of values
  uint64_t last;                // the k-th key, once candidates were ranked
  unsigned reaching[kBinSets];  // bins with a value within the bound
  int held;
  uint32_t candidates[kBoundedRoom];  // positions
};

// Measures a query's candidates; lane i gets the i-th smallest key of the 32 smallest.
template <class = void>
__device__ __noinline__ uint64_t rank_candidates(const BoundedQuery& query, MeasuredCloud cloud) {
  const int lane = threadIdx.x % 32;
  uint64_t best = ~uint64_t{0};
  for (int first = 0; first < query.held; first += 32) {
    uint64_t key = ~uint64_t{0};
    if (first + lane < query.held) key = cloud.key(query.exact, query.candidates[first + lane]);
    const uint64_t sorted = warp_sort(key, lane);
    best = first == 0 ? sorted : warp_merge(best, sorted, lane);
  }
  return best;
}

// Cuts the candidates down to the k nearest, which bound what comes.
template <class = void>
__device__ __noinline__ void keep_nearest(BoundedQuery& query, MeasuredCloud cloud, int k) {
  const int lane = threadIdx.x % 32;
  const uint64_t best = rank_candidates(query, cloud);
  __syncwarp();
  query.candidates[lane] = static_cast<uint32_t>(best);
  if (lane == k - 1) {
    const float d = key_distance<Select::kNearest, float>(best);
    query.last = best;
    query.held = k;
    query.bound = fminf(query.bound, query.bounds.bound(d));
  }
  __syncwarp();
}

// Collects the points of a tile within a query's bound, from the bins that reach it.
template <class = void>
__device__ __noinline__ void scan_bins(BoundedQuery& query, MeasuredCloud cloud, uint32_t tile_at,
                                       int count, uint32_t start, int k) {
  const int lane = threadIdx.x % 32;
  const BoundQuery bounds = query.bounds;
  float bound = query.bound;
  int held = query.held;
  bool ranked = query.last != ~uint64_t{0};
#pragma unroll 1
  for (int u = 0; u < kBinSets; ++u) {
    for (unsigned bins = query.reaching[u]; bins != 0; bins &= bins - 1) {
      const int bin = u * 32 + __ffs(bins) - 1;
      const int j = lane * kBins + bin;
      bool near = j < count;
      // NOTE: written so that NaN is let through
      if (near) {
        near = !(bounds.value(load_shared(tile_at + lane * kBinRowBytes + bin * 16)) > bound);
      }
      // NOTE: many points as far as the k-th would be ranked again and again
      if (near && ranked) near = cloud.key(query.exact, start + j) < query.last;
      const unsigned mask = __ballot_sync(kFullWarp, near);
      if (near) query.candidates[held + __popc(mask & ((1u << lane) - 1))] = start + j;
      held += __popc(mask);
      if (held <= kBoundedRoom - 32) continue;
      if (lane == 0) query.held = held;
      __syncwarp();
      keep_nearest(query, cloud, k);
      held = k;
      bound = query.bound;
      ranked = true;
    }
  }
  __syncwarp();
  if (lane == 0) query.held = held;
  __syncwarp();
}

// The k-th smallest of the two least of every lane's bins.
__device__ __forceinline__ float kth_bin(const float (&bins)[kBinSets], int k, int lane) {
  static_assert(kBinSets == 4);
  const float low = fminf(bins[0], bins[1]);
  const float other_low = fminf(bins[2], bins[3]);
  const float high = fminf(fmaxf(bins[0], bins[1]), fmaxf(bins[2], bins[3]));
  const float first = warp_sort(fminf(low, other_low), lane);
  const float second = warp_sort(fminf(fmaxf(low, other_low), high), lane);
  return __shfl_sync(kFullWarp, warp_merge(first, second, lane), k - 1);
}

// Loads up to `room` points of the `rows` from `first` on, in rows of 128. Called by all threads.
__device__ __forceinline__ void load_bins(const MeasuredCloud& cloud, int64_t first, int64_t rows,
                                          int room, const float3& center, float4* tile) {
  const int count = static_cast<int>(min(rows, int64_t{room}));
  const int padded = (count + kBins - 1) / kBins * kBins;
#pragma unroll 1
  for (int j = threadIdx.x; j < padded; j += kBoundedWarps * 32) {
    float4 point = {0, 0, 0, INFINITY};
    if (j < count) {
      const float4 at = cloud.load(first + j);
      point = bound_point(at.x - center.x, at.y - center.y, at.z - center.z);
    }
    tile[j + j / kBins] = point;
  }
}

// First pass over a tile: the least value in every bin.
template <int Q>
__device__ __forceinline__ void lower_bins(const BoundQuery (&query)[Q], uint32_t tile_at,
                                           int64_t rows, int room, int lane,
                                           float (&bins)[Q][kBinSets]) {
  const int used = static_cast<int>((min(rows, int64_t{room}) + kBins - 1) / kBins);
  const uint32_t end = tile_at + used * kBinRowBytes;
#pragma unroll 1
  for (uint32_t at = tile_at + lane * 16; at < end; at += kBinRowBytes) {
#pragma unroll
    for (int u = 0; u < kBinSets; ++u) {
      const float4 p = load_shared(at + u * 512);
#pragma unroll
      for (int q = 0; q < Q; ++q) bins[q][u] = fminf(bins[q][u], query[q].value(p));
    }
  }
}

// Between the passes: the bound of a query and the bins that reach it.
__device__ __forceinline__ void set_bound(BoundedQuery& state, const BoundQuery& query,
                                          const float (&bins)[kBinSets], uint32_t limit, int k,
                                          int lane) {
  const float farthest = __uint_as_float(min(max(limit, 1u) - 1, 0x7f800000u));
  const float bound = query.bound(fminf(query.reach(kth_bin(bins, k, lane)), farthest));
  if (lane == 0) {
    state.bounds = query;
    state.bound = bound;
  }
#pragma unroll
  for (int u = 0; u < kBinSets; ++u) {
    const unsigned reaching = __ballot_sync(kFullWarp, !(bins[u] > bound));
    if (lane == u) state.reaching[u] = reaching;
  }
}

// Ranks a query's candidates and writes its row.
__device__ __forceinline__ void write_nearest(const BoundedQuery& state, const MeasuredCloud& cloud,
                                              const NeighbourOutput<float>& out, int64_t row,
                                              uint32_t limit, int64_t index_base, int lane) {
  const int k = static_cast<int>(out.k);
  const uint64_t empty = empty_key<Select::kNearest, float>(limit);
  const uint64_t key = min(rank_candidates(state, cloud), empty);
  const uint64_t first = __shfl_sync(kFullWarp, key, 0);
  if (lane < k) {
    write_neighbour<Select::kNearest>(out, row, lane, key, first, empty, index_base);
  }
  const unsigned used = __ballot_sync(kFullWarp, lane < k && key < empty);
  if (out.counts && lane == 0) out.counts[row] = __popc(used);
}

template <int Q>
__global__ void __launch_bounds__(kBoundedWarps * 32, 2)
    knn_bounded_kernel(Clouds points, Clouds queries, DType dtype, NeighbourOutput<float> out,
                       uint32_t limit, int room, int group_bits) {
  extern __shared__ float4 binned[];
  __shared__ BoundedQuery states[kBoundedWarps][Q];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int k = static_cast<int>(out.k);
  const RowGroup group = find_row_group(queries, blockIdx.x, group_bits);
  if (group.first >= group.length) return;
  const int64_t first_query = group.first + warp * Q;
  const int64_t query_row = queries.first_row(group.cloud) + first_query;
  const int64_t length = points.length(group.cloud);
  const MeasuredCloud cloud = {points.points, dtype, points.first_row(group.cloud)};
  const float3 center = bound_center(queries.points, dtype, query_row - warp * Q);
  if (lane < Q) {
    BoundedQuery& state = states[warp][lane];
    const bool exists = first_query + lane < group.length;
    state.exact = exists ? load_point(queries.points, dtype, query_row + lane) : no_point();
    state.last = ~uint64_t{0};
    state.held = 0;
  }
  __syncwarp();
  BoundQuery query[Q];
  float bins[Q][kBinSets];
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    query[q] = BoundQuery(states[warp][q].exact, center);
#pragma unroll
    for (int u = 0; u < kBinSets; ++u) bins[q][u] = INFINITY;
  }

  const uint32_t tile_at = static_cast<uint32_t>(__cvta_generic_to_shared(binned));
  for (int64_t start = 0; start < length; start += room) {
    __syncthreads();
    load_bins(cloud, start, length - start, room, center, binned);
    __syncthreads();
    lower_bins<Q>(query, tile_at, length - start, room, lane, bins);
  }
#pragma unroll
  for (int q = 0; q < Q; ++q) set_bound(states[warp][q], query[q], bins[q], limit, k, lane);
  __syncwarp();

  const bool reload = length > room;
  for (int64_t start = 0; start < length; start += room) {
    if (reload) {
      __syncthreads();
      load_bins(cloud, start, length - start, room, center, binned);
      __syncthreads();
    }
    const int count = static_cast<int>(min(length - start, int64_t{room}));
#pragma unroll 1
    for (int q = 0; q < Q; ++q) {
      scan_bins(states[warp][q], cloud, tile_at, count, static_cast<uint32_t>(start), k);
    }
  }
#pragma unroll 1
  for (int q = 0; q < Q && first_query + q < group.length; ++q) {
    write_nearest(states[warp][q], cloud, out, query_row + q, limit, points.index_base(group.cloud),
                  lane);
  }
}

}  // namespace fusedops
