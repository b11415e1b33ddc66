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
  const BallPlace<Q> at(points, queries, dtype, group, warp);
  if (lane < Q) {
    const bool exists = at.position + lane < group.length;
    wanted[warp][lane] = exists ? load_point(queries.points, dtype, at.row + lane) : no_point();
  }
  __syncwarp();
  BoundQuery query[Q];
  float bound[Q];
  uint32_t found[Q][S];
  unsigned open = 0;  // radii with places left, S bits a query
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    const bool exists = at.position + q < group.length;
    query[q] = BoundQuery(wanted[warp][q], at.center);
    bound[q] = exists ? out.bound(query[q], kAll) : -INFINITY;
    if (exists) open |= kAll << q * S;
#pragma unroll
    for (int s = 0; s < S; ++s) found[q][s] = 0;
  }

  walk_pairs<Q>(tile, points, dtype, at, query, bound, open,
                [&](int q, const GridPoint<float>& point, int64_t first, int j) {
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
                    if (accept && place < scale.k)
                      scale.index[(at.row + q) * scale.k + place] = first + j;
                    found[q][s] += __popc(mask);
                    if (found[q][s] < scale.k) continue;
                    open &= ~(1u << (q * S + s));
                    filled = true;
                  }
                  if (filled) bound[q] = out.bound(query[q], open >> q * S & kAll);
                });
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    if (at.position + q >= group.length) continue;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      const BallScale& scale = out.scale[s];
      const BallOutput<float> ends{scale.index, nullptr, scale.counts, nullptr,
                                   scale.k,     0,       out.pad_first};
      ends.finish(at.row + q, found[q][s], lane);
    }
  }
}

}  // namespace fusedops
