// Neighbours within a radius in the order of their index: the first k (ball query) or all of them
// (radius search: count, then fill). One warp walks a cloud 32 points at a time, so order costs
// nothing, and stops when every query it serves is full.
#pragma once

#include "cuda/grid_search.cuh"
#include "cuda/point_tile.cuh"

namespace fusedops {

inline constexpr int kBallWarps = 8;
inline constexpr int kBallQueries = 4;  // of a warp: a point in shared memory is used four times
inline constexpr int kBallTile = 2048;  // points

// Either rows of k (starts null), or rows of starts[row + 1] - starts[row], or counts alone (index
// null).
template <class T>
struct BallOutput {
  int64_t* index;
  T* distance;
  int64_t* counts;
  const int64_t* starts;
  int64_t k;
  int64_t total;  // places of index, where starts is given
  bool pad_first;

  __device__ int64_t first_place(int64_t row) const { return starts ? starts[row] : row * k; }
  // NOTE: starts is a tensor of the caller's: it is held to the memory that there is.
  __device__ int64_t places(int64_t row) const {
    if (!index) return int64_t{1} << 62;
    if (!starts) return k;
    const int64_t end = min(starts[row + 1], total);
    return starts[row] < 0 ? 0 : max(end - starts[row], int64_t{0});
  }
};

// One query's answer as a warp finds it.
template <class T>
struct BallRow {
  int64_t first;
  int64_t places;
  int64_t found;

  __device__ BallRow(const BallOutput<T>& out, int64_t row, bool exists)
      : first(exists ? out.first_place(row) : 0), places(exists ? out.places(row) : 0), found(0) {}

  __device__ bool full() const { return found >= places; }

  // Called by all lanes: each has a candidate or none.
  __device__ __forceinline__ void add(const BallOutput<T>& out, bool accept, int64_t index, T d,
                                      int lane) {
    const unsigned mask = __ballot_sync(kFullWarp, accept);
    const int64_t place = found + __popc(mask & ((1u << lane) - 1));
    if (accept && out.index && place < places) {
      out.index[first + place] = index;
      if (out.distance) out.distance[first + place] = d;
    }
    found += __popc(mask);
  }

  // Pads the row and writes its count.
  __device__ void finish(const BallOutput<T>& out, int64_t row, int lane) {
    const int64_t used = min(found, places);
    if (out.counts && lane == 0) out.counts[row] = used;
    if (!out.index || out.starts) return;
    __syncwarp();
    const bool repeat = out.pad_first && used > 0;
    const int64_t pad = repeat ? out.index[first] : -1;
    const T pad_distance = repeat && out.distance ? out.distance[first] : static_cast<T>(INFINITY);
    for (int64_t j = used + lane; j < places; j += 32) {
      out.index[first + j] = pad;
      if (out.distance) out.distance[first + j] = pad_distance;
    }
  }
};

__global__ void __launch_bounds__(kBallWarps * 32)
    ball_brute_kernel(Clouds points, Clouds queries, DType dtype, BallOutput<float> out,
                      uint32_t limit, int group_bits) {
  __shared__ float tile[3][kBallTile];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const RowGroup group = find_row_group(queries, blockIdx.x, group_bits);
  if (group.first >= group.length) return;
  const int per_warp = (1 << group_bits) / kBallWarps;
  const int64_t position = group.first + warp * per_warp;
  const int64_t row = queries.first_row(group.cloud) + position;
  const int64_t point_row = points.first_row(group.cloud);
  const int64_t length = points.length(group.cloud);
  const int64_t base = points.index_base(group.cloud);

  float at[kBallQueries][3];
  BallRow<float> rows[kBallQueries] = {{out, row, position < group.length},
                                       {out, row + 1, per_warp > 1 && position + 1 < group.length},
                                       {out, row + 2, per_warp > 2 && position + 2 < group.length},
                                       {out, row + 3, per_warp > 3 && position + 3 < group.length}};
#pragma unroll
  for (int q = 0; q < kBallQueries; ++q) {
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      at[q][d] =
          rows[q].places > 0 ? load_as<float>(queries.points, dtype, (row + q) * 3 + d) : NAN;
    }
  }
  for (int64_t start = 0; start < length; start += kBallTile) {
    bool full = true;
#pragma unroll
    for (int q = 0; q < kBallQueries; ++q) full &= rows[q].full();
    if (__syncthreads_and(full)) break;
    const int count = static_cast<int>(min(length - start, int64_t{kBallTile}));
    const int rounded = (count + 31) / 32 * 32;
    load_tile<kBallWarps * 32, 3>(points, dtype, point_row + start, length - start, kBallTile,
                                  tile[0]);
    __syncthreads();
    if (full) continue;
#pragma unroll 2
    for (int j = lane; j < rounded; j += 32) {
      const GridPoint<float> p = {tile[0][j], tile[1][j], tile[2][j], 0};
      float d[kBallQueries];
      bool some = false;
#pragma unroll
      for (int q = 0; q < kBallQueries; ++q) {
        d[q] = point_distance<false>(at[q][0], at[q][1], at[q][2], p);
        some |= distance_bits(d[q]) < limit;
      }
      if (!__any_sync(kFullWarp, some)) continue;
#pragma unroll
      for (int q = 0; q < kBallQueries; ++q) {
        rows[q].add(out, distance_bits(d[q]) < limit, base + start + j, d[q], lane);
      }
    }
  }
#pragma unroll
  for (int q = 0; q < kBallQueries; ++q) {
    if (q < per_warp && position + q < group.length) rows[q].finish(out, row + q, lane);
  }
}

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
  BallRow<T> result(out, row, true);
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
  result.finish(out, row, lane);
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
  BallRow<T> result(out, row, true);
  walk_boxes<false, T>(
      cloud, stacks[threadIdx.x / 32], {at[0], at[1], at[2], T{0}}, lane,
      [&](T d, uint32_t) { return distance_bits(d) < limit; },
      [&](const GridPoint<T>& p, T d) {
        result.add(out, distance_bits(d) < limit, base + index_of(p.w), d, lane);
        return kVisited - 1;
      });
  result.finish(out, row, lane);
}

// ---- radius search: each row in the order of its index ----

// keys: (row, index) of every entry; values: where the entry is.
__global__ void radius_keys_kernel(const int64_t* __restrict__ starts, int64_t rows,
                                   const int64_t* __restrict__ index, int64_t total, int index_bits,
                                   uint64_t* keys, uint32_t* places) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= total) return;
  int64_t low = 0;
  int64_t high = rows - 1;
  while (low < high) {  // the last row that starts at or before i
    const int64_t middle = (low + high + 1) / 2;
    if (starts[middle] <= i) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  keys[i] = static_cast<uint64_t>(low) << index_bits | static_cast<uint64_t>(index[i]);
  places[i] = static_cast<uint32_t>(i);
}

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
