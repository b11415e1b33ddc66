// Neighbours within a radius in the order of their index: the first k (ball query) or all of them
// (radius search: count, then fill). One warp walks a cloud 32 points at a time, so order costs
// nothing, and stops when every query it serves is full.
#pragma once

#include "csrc/cuda/points/neighbours/ball_output.cuh"
#include "csrc/cuda/points/neighbours/grid_search.cuh"

namespace fusedops {

// Any dimension and dtype, one warp a query.
template <class S, class T>
__global__ void ball_any_kernel(Clouds points, Clouds queries, BallOutput<T> out, KeyBits<T> limit,
                                int group_bits) {
  const int lane = threadIdx.x % 32;
  const RowGroup group = find_row_group(queries, blockIdx.x, group_bits);
  const int64_t position = group.first + threadIdx.x / 32;
  if (position >= group.length) return;
  const int64_t row = queries.first_row(group.cloud) + position;
  const int64_t length = points.length(group.cloud);
  const int64_t dim = points.dim;
  const S* cloud = static_cast<const S*>(points.points) + points.first_row(group.cloud) * dim;
  const S* query = static_cast<const S*>(queries.points) + row * dim;
  BallRow<T> result(out, row);
  for (int64_t start = 0; start < length && !result.full(); start += 32) {
    const int64_t i = start + lane;
    T d = i < length ? T{0} : static_cast<T>(NAN);
    if (i < length) {
      for (int64_t c = 0; c < dim; ++c) {
        const T delta =
            static_cast<T>(to_compute(query[c])) - static_cast<T>(to_compute(cloud[i * dim + c]));
        d = fma(delta, delta, d);
      }
    }
    result.add(out, distance_bits(d) < limit, points.index_base(group.cloud) + i, d, lane);
  }
  out.finish(row, result.found, lane);
}

// All neighbours within the radius, through the index: in the order of the walk.
template <class T>
__global__ void grid_radius_kernel(Clouds points, GridView<T> grid, Clouds queries, DType dtype,
                                   const uint32_t* __restrict__ query_order, BallOutput<T> out,
                                   KeyBits<T> limit, int group_bits) {
  __shared__ WalkStack stacks[kGridWarps];
  const int lane = threadIdx.x % 32;
  const RowGroup group = find_row_group(queries, blockIdx.x, group_bits);
  const int64_t position = group.first + threadIdx.x / 32;
  if (position >= group.length) return;
  int64_t row = queries.first_row(group.cloud) + position;
  if (query_order) row = query_order[row];
  const CloudGrid<T> cloud{grid, points.first_row(group.cloud), group.cloud,
                           points.length(group.cloud)};
  T at[3];
  load_coordinates(queries, dtype, row, at);
  const int64_t base = points.index_base(group.cloud);
  BallRow<T> result(out, row);
  walk_boxes<false, T>(
      cloud, stacks[threadIdx.x / 32], {at[0], at[1], at[2], T{0}}, lane,
      [&](T d, uint32_t) { return distance_bits(d) < limit; },
      [&](const GridPoint<T>& p, T d) {
        result.add(out, distance_bits(d) < limit, base + index_of(p.w), d, lane);
        return kVisited - 1;
      });
  out.finish(row, result.found, lane);
}

// ---- radius search: each row in the order of its index ----

template <class T>
__global__ void radius_gather_kernel(const uint64_t* __restrict__ keys,
                                     const uint32_t* __restrict__ places,
                                     const T* __restrict__ from, int64_t total, int index_bits,
                                     int64_t* index, T* distance) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= total) return;
  index[i] = static_cast<int64_t>(keys[i] & ((uint64_t{1} << index_bits) - 1));
  distance[i] = from[places[i]];
}

}  // namespace fusedops
