// The first neighbours within a radius by comparing every pair, for three coordinates in float32.
// A warp walks a cloud 32 points at a time for Q queries; pairs within the bound are measured.
#pragma once

#include "csrc/cuda/points/neighbours/ball_output.cuh"
#include "csrc/cuda/points/neighbours/grid_search.cuh"
#include "csrc/cuda/points/neighbours/pair_bound.cuh"

namespace fusedops {

inline constexpr int kBallWarps = 16;
inline constexpr int kBallUnroll = 3;  // points of a tile that a thread loads at once
inline constexpr int kBallTile = kBallUnroll * kBallWarps * 32;

struct BallTile {
  float exact[3][kBallTile];
  float4 bound[kBallTile];

  // Up to kBallTile of the `rows` from `first` on. Called by all threads.
  __device__ __forceinline__ void load(const Clouds& points, DType dtype, int64_t first,
                                       int64_t rows, const float3& center) {
    float4 at[kBallUnroll];
#pragma unroll
    for (int i = 0; i < kBallUnroll; ++i) {
      const int j = threadIdx.x + i * kBallWarps * 32;
      at[i] = j < rows ? load_point(points.points, dtype, first + j) : no_point();
    }
#pragma unroll
    for (int i = 0; i < kBallUnroll; ++i) {
      const int j = threadIdx.x + i * kBallWarps * 32;
      exact[0][j] = at[i].x;
      exact[1][j] = at[i].y;
      exact[2][j] = at[i].z;
      const float4 near = bound_point(at[i].x - center.x, at[i].y - center.y, at[i].z - center.z);
      bound[j] = j < rows ? near : float4{0, 0, 0, INFINITY};
    }
    __syncthreads();
  }
};

// A warp's Q queries, and the cloud that they search.
template <int Q>
struct BallPlace {
  int64_t cloud;
  int64_t position, row;  // of the first query: in its cloud, and of all
  int64_t point_row, length;
  float3 center;

  __device__ __forceinline__ BallPlace(const Clouds& points, const Clouds& queries, DType dtype,
                                       const RowGroup& group, int warp)
      : cloud(group.cloud),
        position(group.first + warp * Q),
        row(queries.first_row(cloud) + position),
        point_row(points.first_row(cloud)),
        length(points.length(cloud)),
        center(bound_center(queries.points, dtype, row - warp * Q)) {}
};

// Compares a cloud with a warp's Q queries while `open` of some warp is not 0: on all lanes
// measure(q, point, first, j), where the value of query q is within bound[q] on some lane. Point
// j of the tile is this lane's, and first + j its index.
template <int Q, class Measure>
__device__ __forceinline__ void walk_pairs(BallTile& tile, const Clouds& points, DType dtype,
                                           const BallPlace<Q>& place, const BoundQuery (&query)[Q],
                                           const float (&bound)[Q], const unsigned& open,
                                           Measure&& measure) {
  const int lane = threadIdx.x % 32;
  const uint32_t tile_at = static_cast<uint32_t>(__cvta_generic_to_shared(tile.bound));
  for (int64_t start = 0; start < place.length; start += kBallTile) {
    if (__syncthreads_and(open == 0)) break;
    tile.load(points, dtype, place.point_row + start, place.length - start, place.center);
    if (open == 0) continue;
    const int count = static_cast<int>(min(place.length - start, int64_t{kBallTile}));
    const uint32_t end = tile_at + (count + 31) / 32 * 512;
    const int64_t first = points.index_base(place.cloud) + start;
#pragma unroll 1
    for (uint32_t at = tile_at + lane * 16; at < end; at += 512) {
      const float4 p = load_shared(at);
      float value[Q];
      bool near = false;
#pragma unroll
      for (int q = 0; q < Q; ++q) {
        value[q] = query[q].value(p);
        // NOTE: written so that NaN is let through
        near |= !(value[q] > bound[q]);
      }
      if (!__any_sync(kFullWarp, near)) continue;
      const int j = static_cast<int>(at - tile_at) / 16;
      const GridPoint<float> point = {tile.exact[0][j], tile.exact[1][j], tile.exact[2][j], 0};
#pragma unroll
      for (int q = 0; q < Q; ++q) {
        if (__any_sync(kFullWarp, !(value[q] > bound[q]))) measure(q, point, first, j);
      }
    }
  }
}

// A query of a warp, in shared memory.
struct BallQuery {
  float x, y, z;
  uint32_t places;
  int64_t first_place;
};

template <int Q>
__global__ void __launch_bounds__(kBallWarps * 32, 2)
    ball_brute_kernel(Clouds points, Clouds queries, DType dtype, BallOutput<float> out,
                      uint32_t limit, int group_bits) {
  __shared__ BallTile tile;
  __shared__ BallQuery wanted[kBallWarps][Q];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const RowGroup group = find_row_group(queries, blockIdx.x, group_bits);
  if (group.first >= group.length) return;
  const BallPlace<Q> at(points, queries, dtype, group, warp);
  if (lane < Q) {
    const bool exists = at.position + lane < group.length;
    const float4 own = exists ? load_point(queries.points, dtype, at.row + lane) : no_point();
    wanted[warp][lane] = {own.x, own.y, own.z, exists ? out.places(at.row + lane) : 0,
                          exists ? out.first_place(at.row + lane) : 0};
  }
  __syncwarp();
  const float reach = __uint_as_float(min(max(limit, 1u) - 1, 0x7f800000u));
  BoundQuery query[Q];
  float bound[Q];
  uint32_t found[Q];
  unsigned open = 0;  // queries with places left
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    const BallQuery& to = wanted[warp][q];
    query[q] = BoundQuery({to.x, to.y, to.z, 0.0f}, at.center);
    bound[q] = to.places > 0 ? query[q].bound(reach) : -INFINITY;
    found[q] = 0;
    if (to.places > 0) open |= 1u << q;
  }

  walk_pairs<Q>(tile, points, dtype, at, query, bound, open,
                [&](int q, const GridPoint<float>& point, int64_t first, int j) {
                  const BallQuery& to = wanted[warp][q];
                  const float d = point_distance<false>(to.x, to.y, to.z, point);
                  const bool accept = distance_bits(d) < limit;
                  const unsigned mask = __ballot_sync(kFullWarp, accept);
                  const uint32_t place = found[q] + __popc(mask & ((1u << lane) - 1));
                  if (accept && place < to.places) out.put(to.first_place + place, first + j, d);
                  found[q] += __popc(mask);
                  if (found[q] < to.places) return;
                  bound[q] = -INFINITY;
                  open &= ~(1u << q);
                });
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    if (at.position + q < group.length) out.finish(at.row + q, found[q], lane);
  }
}

}  // namespace fusedops
