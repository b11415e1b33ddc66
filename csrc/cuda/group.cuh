// Gathers rows by index: out[b, e] = [points[b, idx] - center, features[b, idx]], zeros where idx
// is no row of the cloud. Entries e of a cloud are (m, k) in order; the index is read once per row.
#pragma once

#include <algorithm>

#include "common/cloud.cuh"
#include "common/int_math.h"

namespace fusedops {

inline constexpr int kGroupThreads = 256;
inline constexpr int kGroupUnroll = 4;  // rows a thread has in flight
inline constexpr int64_t kMaxGridY = 65535;

// ---- features alone: rows of bytes, moved as the widest type their alignment allows ----

template <class Access>
struct CopyRows {
  const Access* features;  // [B][n][width]
  const int64_t* idx;      // [B][entries]
  Access* out;             // [B][entries][width]
  int64_t clouds, n, entries, width;
};

template <class Access>
__global__ void __launch_bounds__(kGroupThreads)
    group_copy_kernel(CopyRows<Access> a, int lanes) {  // lanes of a thread group: a power of two
  const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
  const int groups = kGroupThreads / lanes;
  const int64_t first = int64_t{blockIdx.x} * groups * kGroupUnroll + group;
  for (int64_t b = blockIdx.y; b < a.clouds; b += gridDim.y) {
    int64_t row[kGroupUnroll];
#pragma unroll
    for (int u = 0; u < kGroupUnroll; ++u) {
      const int64_t e = first + int64_t{u} * groups;
      row[u] = e < a.entries ? __ldg(a.idx + b * a.entries + e) : -1;
    }
    for (int64_t i = lane; i < a.width; i += lanes) {
      Access value[kGroupUnroll] = {};
#pragma unroll
      for (int u = 0; u < kGroupUnroll; ++u) {
        if (row[u] >= 0 && row[u] < a.n)
          value[u] = __ldg(a.features + (b * a.n + row[u]) * a.width + i);
      }
#pragma unroll
      for (int u = 0; u < kGroupUnroll; ++u) {
        const int64_t e = first + int64_t{u} * groups;
        if (e < a.entries) __stcs(a.out + (b * a.entries + e) * a.width + i, value[u]);
      }
    }
  }
}

template <class Access>
void launch_group_copy(const CopyRows<Access>& a, cudaStream_t stream) {
  int lanes = 1;
  while (lanes < 32 && lanes < a.width) lanes *= 2;
  const int64_t rows = int64_t{kGroupThreads / lanes} * kGroupUnroll;
  const dim3 grid(static_cast<unsigned>(ceil_div(a.entries, rows)),
                  static_cast<unsigned>(std::min(a.clouds, kMaxGridY)));
  group_copy_kernel<Access><<<grid, kGroupThreads, 0, stream>>>(a, lanes);
}

// ---- with coordinates: element by element, since rows of D + C values have no alignment ----

template <class T>
struct GroupRows {
  const T* features;    // [B][n][channels] or null
  const void* points;   // [B][n][dim]
  const void* centers;  // [B][groups][dim] or null
  DType point_dtype;
  const int64_t* idx;  // [B][groups][neighbours]
  T* out;              // [B][groups][neighbours][dim + channels]
  int64_t clouds, n, groups, neighbours, channels, dim;
};

inline constexpr int kGroupTile = 8192;     // values a CTA writes, about
inline constexpr int kGroupTileRows = 256;  // at most

// i / width, for a tile of one row or of less than 2^13 values.
__device__ __forceinline__ int tile_row(int64_t i, int rows, int64_t width, uint32_t magic) {
  if (rows == 1) return 0;
  return static_cast<int>(width == 1 ? i : __umulhi(static_cast<uint32_t>(i), magic));
}

template <class T>
__global__ void __launch_bounds__(kGroupThreads)
    group_rows_kernel(GroupRows<T> a, int tile_rows, uint32_t magic) {  // magic: 2^32 / width + 1
  __shared__ int64_t source[kGroupTileRows];
  __shared__ int64_t center[kGroupTileRows];
  const int64_t entries = a.groups * a.neighbours, width = a.dim + a.channels;
  const int64_t first = int64_t{blockIdx.x} * tile_rows;
  const int rows = static_cast<int>(min(int64_t{tile_rows}, entries - first));
  for (int64_t b = blockIdx.y; b < a.clouds; b += gridDim.y) {
    __syncthreads();  // the previous cloud's rows are done
    for (int r = threadIdx.x; r < rows; r += kGroupThreads) {
      const int64_t row = a.idx[b * entries + first + r];
      source[r] = row >= 0 && row < a.n ? b * a.n + row : -1;
      center[r] = b * a.groups + (first + r) / a.neighbours;
    }
    __syncthreads();
    T* out = a.out + (b * entries + first) * width;
    for (int64_t i = threadIdx.x; i < rows * width; i += kGroupThreads) {
      const int r = tile_row(i, rows, width, magic);
      const int64_t column = i - r * width;
      T value = from_compute<T>(Compute<T>(0));
      if (source[r] >= 0 && column >= a.dim) {
        value = a.features[source[r] * a.channels + column - a.dim];
      } else if (source[r] >= 0) {
        Compute<T> x = load_as<Compute<T>>(a.points, a.point_dtype, source[r] * a.dim + column);
        if (a.centers) {
          x -= load_as<Compute<T>>(a.centers, a.point_dtype, center[r] * a.dim + column);
        }
        value = from_compute<T>(x);
      }
      out[i] = value;
    }
  }
}

template <class T>
void launch_group_rows(const GroupRows<T>& a, cudaStream_t stream) {
  const int64_t width = a.dim + a.channels;
  const int tile_rows =
      static_cast<int>(std::clamp<int64_t>(kGroupTile / width, 1, kGroupTileRows));
  // i / width = umulhi(i, magic) for i < 2^13, width <= 2^13: the excess i * width stays under 2^32
  const auto magic = static_cast<uint32_t>((uint64_t{1} << 32) / static_cast<uint64_t>(width) + 1);
  const dim3 grid(static_cast<unsigned>(ceil_div(a.groups * a.neighbours, tile_rows)),
                  static_cast<unsigned>(std::min(a.clouds, kMaxGridY)));
  group_rows_kernel<T><<<grid, kGroupThreads, 0, stream>>>(a, tile_rows, magic);
}

}  // namespace fusedops
