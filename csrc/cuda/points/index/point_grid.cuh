// Builds the index of common/point_grid.h: extents of every cloud, a key per row (cloud, Hilbert
// code), one radix sort, leaves of 32 rows with their box, then box over 32 boxes, level by level.
// Linear in time and memory, no synchronisation.
#pragma once

#include <cfloat>

#include "csrc/cuda/points/index/grid_device.cuh"

namespace fusedops {

inline constexpr int kGridThreads = 256;

// Doubles as unsigned integers in the same order, for atomicMin and atomicMax.
__device__ __forceinline__ unsigned long long to_ordered(double x) {
  const auto bits = static_cast<unsigned long long>(__double_as_longlong(x));
  return bits >> 63 ? ~bits : bits | 1ull << 63;
}
__device__ __forceinline__ double from_ordered(unsigned long long bits) {
  return __longlong_as_double(static_cast<long long>(bits >> 63 ? bits & ~(1ull << 63) : ~bits));
}

// The cloud of a row; -1 before the first cloud, B after the last.
__device__ __forceinline__ int64_t cloud_of_row(const Clouds& clouds, int64_t row) {
  if (!clouds.offsets) return row / clouds.capacity;
  if (row < clouds.first_row(0)) return -1;
  int64_t low = 0;
  int64_t high = clouds.count;
  while (low < high) {  // the number of clouds that start at or before the row
    const int64_t middle = (low + high) / 2;
    if (clouds.first_row(middle) <= row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const int64_t cloud = low - 1;
  return row < clouds.first_row(cloud) + clouds.length(cloud) ? cloud : clouds.count;
}

// extents: (B, 6), the ordered bits of three minima and three maxima.
__global__ void init_extents_kernel(unsigned long long* extents, int64_t clouds) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < clouds * 6) extents[i] = i % 6 < 3 ? ~0ull : 0ull;
}

template <int Rows>  // of a thread
__global__ void __launch_bounds__(kGridThreads)
    reduce_extents_kernel(Clouds clouds, DType dtype, unsigned long long* extents) {
  const int64_t rows = clouds.num_rows();
  const int64_t first = (int64_t{blockIdx.x} * kGridThreads + threadIdx.x / 32 * 32) * Rows;
  double low[3] = {DBL_MAX, DBL_MAX, DBL_MAX};
  double high[3] = {-DBL_MAX, -DBL_MAX, -DBL_MAX};
  int64_t current = -1;
  const auto flush = [&] {  // all lanes hold rows of one cloud, or none
    if (current < 0) return;
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      unsigned long long least = to_ordered(low[d]);
      unsigned long long most = to_ordered(high[d]);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        least = min(least, __shfl_xor_sync(kFullWarp, least, step));
        most = max(most, __shfl_xor_sync(kFullWarp, most, step));
      }
      if (threadIdx.x % 32 == 0) {
        atomicMin(&extents[current * 6 + d], least);
        atomicMax(&extents[current * 6 + 3 + d], most);
      }
      low[d] = DBL_MAX;
      high[d] = -DBL_MAX;
    }
  };
  for (int i = 0; i < Rows; ++i) {
    const int64_t row = first + i * 32 + threadIdx.x % 32;
    int64_t cloud = row < rows ? cloud_of_row(clouds, row) : -1;
    if (cloud >= clouds.count) cloud = -1;
    if (cloud >= 0 && row - clouds.first_row(cloud) >= clouds.length(cloud)) cloud = -1;
    unsigned left = __ballot_sync(kFullWarp, cloud >= 0);
    while (left != 0) {  // one cloud at a time: nearly always the current one
      const int64_t next = __shfl_sync(kFullWarp, cloud, __ffs(left) - 1);
      if (next != current) {
        flush();
        current = next;
      }
      if (cloud == next) {
        double x[3];
        load_coordinates(clouds, dtype, row, x);
#pragma unroll
        for (int d = 0; d < 3; ++d) {
          if (isfinite(x[d])) {
            low[d] = fmin(low[d], x[d]);
            high[d] = fmax(high[d], x[d]);
          }
        }
      }
      left &= ~__ballot_sync(kFullWarp, cloud == next);
    }
  }
  flush();
}

__global__ void make_frames_kernel(const unsigned long long* extents, GridFrame* frames,
                                   int64_t clouds, int code_bits) {
  const int64_t b = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (b >= clouds) return;
  double size = 0;
  GridFrame frame;
  for (int d = 0; d < 3; ++d) {
    const double low = from_ordered(extents[b * 6 + d]);
    const double high = from_ordered(extents[b * 6 + 3 + d]);
    frame.low[d] = low <= high ? low : 0;  // no finite point: any frame will do
    size = fmax(size, low <= high ? high - low : 0);
  }
  const double cells = static_cast<double>(1u << code_bits);
  frame.scale = size > 0 && isfinite(cells / size) ? cells / size : 0;
  frames[b] = frame;
}

// Rows outside every cloud get keys that keep them out of the clouds' places: the radix sort is
// stable, and such rows come before (or after) all rows that share their key.
__global__ void __launch_bounds__(kGridThreads)
    make_keys_kernel(Clouds clouds, DType dtype, const GridFrame* frames, GridShape shape,
                     uint64_t* keys, uint32_t* rows) {
  const int64_t row = int64_t{blockIdx.x} * kGridThreads + threadIdx.x;
  if (row >= clouds.num_rows()) return;
  const int64_t cloud = cloud_of_row(clouds, row);
  const uint64_t last_code = (uint64_t{1} << (3 * shape.code_bits)) - 1;
  uint64_t key = 0;
  if (cloud >= clouds.count) {
    key = ~uint64_t{0};
  } else if (cloud >= 0) {
    key = static_cast<uint64_t>(cloud) << (3 * shape.code_bits);
    if (row - clouds.first_row(cloud) < clouds.length(cloud)) {
      double x[3];
      load_coordinates(clouds, dtype, row, x);
      uint32_t cell[3];
#pragma unroll
      for (int d = 0; d < 3; ++d) {
        cell[d] = grid_cell(x[d], frames[cloud].low[d], frames[cloud].scale, shape.code_bits);
      }
      key |= hilbert_code(cell[0], cell[1], cell[2], shape.code_bits);
    } else {
      key |= last_code;
    }
  }
  keys[row] = key;
  rows[row] = static_cast<uint32_t>(row);
}

// The box over the lanes' boxes, written by lane 0. fmin and fmax leave NaN out.
template <class T>
__device__ __forceinline__ void write_box(GridBox<T>* box, GridPoint<T> low, GridPoint<T> high,
                                          uint32_t min_index) {
  low = {warp_min(low.x), warp_min(low.y), warp_min(low.z), T{0}};
  high = {warp_max(high.x), warp_max(high.y), warp_max(high.z), T{0}};
  low.w = index_as<T>(__reduce_min_sync(kFullWarp, min_index));
  if (threadIdx.x % 32 == 0) *box = {low, high};
}

template <class T>
__global__ void __launch_bounds__(kGridThreads)
    make_leaves_kernel(Clouds clouds, DType dtype, GridView<T> grid) {
  const int lane = threadIdx.x % 32;
  const int64_t leaf = int64_t{blockIdx.x} * (kGridThreads / 32) + threadIdx.x / 32;
  if (leaf >= grid.shape.groups(0)) return;
  const RowGroup group = find_row_group(clouds, leaf, kGroupBits);
  if (group.first >= group.length) return;
  GridPoint<T> point = {static_cast<T>(NAN), static_cast<T>(NAN), static_cast<T>(NAN),
                        index_as<T>(kNoIndex)};
  if (group.first + lane < group.length) {
    const int64_t first_row = clouds.first_row(group.cloud);
    const int64_t row = grid.order[first_row + group.first + lane];
    T x[3];
    load_coordinates(clouds, dtype, row, x);
    point = {x[0], x[1], x[2], index_as<T>(static_cast<uint32_t>(row - first_row))};
    // NOTE: one NaN coordinate makes a point no neighbour; all NaN, and it stretches no box
    if (x[0] != x[0] || x[1] != x[1] || x[2] != x[2]) {
      point.x = point.y = point.z = static_cast<T>(NAN);
    }
  }
  grid.points[leaf * kGroup + lane] = point;
  const T inf = static_cast<T>(INFINITY);
  const GridPoint<T> low = {fmin(point.x, inf), fmin(point.y, inf), fmin(point.z, inf), T{0}};
  const GridPoint<T> high = {fmax(point.x, -inf), fmax(point.y, -inf), fmax(point.z, -inf), T{0}};
  write_box(&grid.boxes[leaf], low, high, index_of(point.w));
}

template <class T>
__global__ void __launch_bounds__(kGridThreads)
    make_boxes_kernel(Clouds clouds, GridView<T> grid, int level) {
  const int lane = threadIdx.x % 32;
  const int64_t box = int64_t{blockIdx.x} * (kGridThreads / 32) + threadIdx.x / 32;
  if (box >= grid.shape.groups(level)) return;
  const RowGroup group = find_row_group(clouds, box, kGroupBits * (level + 1));
  if (group.first >= group.length) return;
  const int64_t child = (group.first >> (kGroupBits * level)) + lane;
  const T inf = static_cast<T>(INFINITY);
  GridPoint<T> low = {inf, inf, inf, index_as<T>(kNoIndex)};
  GridPoint<T> high = {-inf, -inf, -inf, T{0}};
  if (child < num_groups(group.length, level - 1)) {
    const GridBox<T> inner =
        grid.boxes[grid.shape.first_box(level - 1) +
                   group_base(clouds.first_row(group.cloud), group.cloud, level - 1) + child];
    low = inner.low;
    high = inner.high;
  }
  write_box(&grid.boxes[grid.shape.first_box(level) + box], low, high, index_of(low.w));
}

}  // namespace fusedops
