// The first neighbours within each of several radii by one pass over every pair, for three
// coordinates in float32: what ball_brute.cuh does for one radius. A pair is bounded by the widest
// radius that has places left, and measured once for all of them.
#pragma once

#include "csrc/cuda/points/neighbours/ball_brute.cuh"

namespace fusedops {

// One radius: its rows of k indices and its counts.
struct BallScale {
  int64_t* index;
  int64_t* counts;
  int64_t k;
  uint32_t limit;  // bits of the first distance that is too far

  __device__ __forceinline__ float reach() const {
    return __uint_as_float(min(max(limit, 1u) - 1, 0x7f800000u));
  }
};

template <int S>
struct BallScales {
  BallScale scale[S];
  bool pad_first;

  // The bound of values for the radii in `open`.
  __device__ __forceinline__ float bound(const BoundQuery& query, unsigned open) const {
    float widest = -1.0f;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      if (open >> s & 1) widest = fmaxf(widest, scale[s].reach());
    }
    return open ? query.bound(widest) : -INFINITY;
  }
};

template <int Q, int S>
__global__ void __launch_bounds__(kBallWarps * 32, 2)
    ball_scales_kernel(Clouds points, Clouds queries, DType dtype, BallScales<S> out,
                       int group_bits) {
  constexpr unsigned kAll = (1u << S) - 1;
  __shared__ BallTile tile;
  __shared__ float4 wanted[kBallWarps][Q];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const RowGroup group = find_row_group(queries, blockIdx.x, group_bits);
  if (group.first >= group.length) return;
  const int64_t position = group.first + warp * Q;
  const int64_t row = queries.first_row(group.cloud) + position;
  const int64_t point_row = points.first_row(group.cloud);
  const int64_t length = points.length(group.cloud);
  const float3 center = bound_center(queries.points, dtype, row - warp * Q);
  if (lane < Q) {
    const bool exists = position + lane < group.length;
    wanted[warp][lane] = exists ? load_point(queries.points, dtype, row + lane) : no_point();
  }
  __syncwarp();
  BoundQuery query[Q];
  float bound[Q];
  uint32_t found[Q][S];
  unsigned open = 0;  // radii with places left, S bits a query
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    const bool exists = position + q < group.length;
    query[q] = BoundQuery(wanted[warp][q], center);
    bound[q] = exists ? out.bound(query[q], kAll) : -INFINITY;
    if (exists) open |= kAll << q * S;
#pragma unroll
    for (int s = 0; s < S; ++s) found[q][s] = 0;
  }

  const uint32_t tile_at = static_cast<uint32_t>(__cvta_generic_to_shared(tile.bound));
  for (int64_t start = 0; start < length; start += kBallTile) {
    if (__syncthreads_and(open == 0)) break;
    tile.load(points, dtype, point_row + start, length - start, center);
    if (open == 0) continue;
    const int count = static_cast<int>(min(length - start, int64_t{kBallTile}));
    const uint32_t end = tile_at + (count + 31) / 32 * 512;
    const int64_t first = points.index_base(group.cloud) + start;
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
        if (!__any_sync(kFullWarp, !(value[q] > bound[q]))) continue;
        const float4 to = wanted[warp][q];
        const uint32_t d = distance_bits(point_distance<false>(to.x, to.y, to.z, point));
        bool filled = false;
#pragma unroll
        for (int s = 0; s < S; ++s) {
          if (!(open >> (q * S + s) & 1)) continue;
          const BallScale& scale = out.scale[s];
          const bool accept = d < scale.limit;
          const unsigned mask = __ballot_sync(kFullWarp, accept);
          const int64_t place = found[q][s] + __popc(mask & ((1u << lane) - 1));
          if (accept && place < scale.k) scale.index[(row + q) * scale.k + place] = first + j;
          found[q][s] += __popc(mask);
          if (found[q][s] < scale.k) continue;
          open &= ~(1u << (q * S + s));
          filled = true;
        }
        if (filled) bound[q] = out.bound(query[q], open >> q * S & kAll);
      }
    }
  }
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    if (position + q >= group.length) continue;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      const BallScale& scale = out.scale[s];
      const BallOutput<float> ends{scale.index, nullptr, scale.counts, nullptr,
                                   scale.k,     0,       out.pad_first};
      ends.finish(row + q, found[q][s], lane);
    }
  }
}

}  // namespace fusedops
