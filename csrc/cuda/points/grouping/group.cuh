// Gathers rows by index: out[b, e] = [points[b, idx] - center, features[b, idx]], zeros where idx
// is no row of the cloud. Entries e of a cloud are (m, k) in order; the index is read once per row.
#pragma once

#include <algorithm>

#include "csrc/common/device/cloud.cuh"
#include "csrc/common/device/division.cuh"
#include "csrc/common/grid_limits.h"
#include "csrc/common/int_math.h"

namespace fusedops {

inline constexpr int kGroupThreads = 256;
inline constexpr int kGroupUnroll = 4;  // rows a thread has in flight

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

// ---- with coordinates: rows of D + C values, which have no alignment ----

template <class T>
struct GroupRows {
  const T* features;    // [B][n][channels] or null
  const void* points;   // [B][n][dim]
  const void* centers;  // [B][groups][dim] or null
  bool wide_points;     // they are float32 beside halves
  const int64_t* idx;   // [B][groups][neighbours]
  T* out;               // [B][groups][neighbours][dim + channels]
  int64_t clouds, n, groups, neighbours, channels, dim;
};

// 16 bytes of (low, high) from `bytes` on.
__device__ __forceinline__ uint4 shifted(uint4 low, uint4 high, uint32_t bytes) {
  if (bytes & 8) low = {low.z, low.w, high.x, high.y}, high = {high.z, high.w, 0, 0};
  if (bytes & 4) low = {low.y, low.z, low.w, high.x}, high.x = high.y;
  if (bytes & 2) {
    low = {__funnelshift_r(low.x, low.y, 16), __funnelshift_r(low.y, low.z, 16),
           __funnelshift_r(low.z, low.w, 16), __funnelshift_r(low.w, high.x, 16)};
  }
  return low;
}

// Features of 16-byte aligned rows into rows of any place, by 16 bytes: each access takes its bytes
// from two neighbouring ones of the source; what is left at both ends goes value by value.
template <class T>
__device__ __forceinline__ void copy_features_shifted(const GroupRows<T>& a,
                                                      const int64_t (&source)[kGroupUnroll],
                                                      T* const (&out)[kGroupUnroll], int lane,
                                                      int lanes) {
  constexpr int V = 16 / sizeof(T);
  const int64_t vectors = a.channels / V;
  int head[kGroupUnroll];
#pragma unroll
  for (int u = 0; u < kGroupUnroll; ++u) {
    const auto place = reinterpret_cast<uintptr_t>(out[u] + a.dim) / sizeof(T);
    head[u] = static_cast<int>((V - place % V) % V);
  }
  for (int64_t k = lane; k < vectors; k += lanes) {
    uint4 value[kGroupUnroll];
#pragma unroll
    for (int u = 0; u < kGroupUnroll; ++u) {
      value[u] = {};
      if (source[u] >= 0) {
        const auto* from = reinterpret_cast<const uint4*>(a.features + source[u] * a.channels) + k;
        const bool next = head[u] > 0 && k + 1 < vectors;
        value[u] = shifted(__ldg(from), next ? __ldg(from + 1) : uint4{}, head[u] * sizeof(T));
      }
    }
#pragma unroll
    for (int u = 0; u < kGroupUnroll; ++u) {
      if (out[u] && (head[u] == 0 || k + 1 < vectors)) {
        *reinterpret_cast<uint4*>(out[u] + a.dim + head[u] + k * V) = value[u];
      }
    }
  }
#pragma unroll
  for (int u = 0; u < kGroupUnroll; ++u) {
    if (!out[u] || head[u] == 0) continue;
    for (int i = lane; i < V; i += lanes) {
      const int64_t c = i < head[u] ? i : (vectors - 1) * V + i;
      out[u][a.dim + c] = source[u] < 0 ? from_compute<T>(Compute<T>(0))
                                        : __ldg(a.features + source[u] * a.channels + c);
    }
  }
}

template <class T>
__device__ __forceinline__ void copy_features(const GroupRows<T>& a,
                                              const int64_t (&source)[kGroupUnroll],
                                              T* const (&out)[kGroupUnroll], int lane, int lanes) {
#pragma unroll 2
  for (int64_t c = lane; c < a.channels; c += lanes) {
    T value[kGroupUnroll];
#pragma unroll
    for (int u = 0; u < kGroupUnroll; ++u) {
      value[u] = source[u] < 0 ? from_compute<T>(Compute<T>(0))
                               : __ldg(a.features + source[u] * a.channels + c);
    }
#pragma unroll
    for (int u = 0; u < kGroupUnroll; ++u) {
      if (out[u]) out[u][a.dim + c] = value[u];
    }
  }
}

template <class T, bool kVector>
__global__ void __launch_bounds__(kGroupThreads) group_rows_kernel(GroupRows<T> a, int lanes) {
  const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
  const int groups = kGroupThreads / lanes;
  const int64_t entries = a.groups * a.neighbours, width = a.dim + a.channels;
  const int64_t first = int64_t{blockIdx.x} * groups * kGroupUnroll + group;
  for (int64_t b = blockIdx.y; b < a.clouds; b += gridDim.y) {
    // Rows first, first + groups, ...: their loads in flight together
    int64_t source[kGroupUnroll];
    T* out[kGroupUnroll];
#pragma unroll
    for (int u = 0; u < kGroupUnroll; ++u) {
      const int64_t e = first + int64_t{u} * groups;
      const int64_t row = e < entries ? __ldg(a.idx + b * entries + e) : -1;
      source[u] = row >= 0 && row < a.n ? b * a.n + row : -1;
      out[u] = e < entries ? a.out + (b * entries + e) * width : nullptr;
    }
    for (int64_t d = lane; d < a.dim; d += lanes) {
      Compute<T> x[kGroupUnroll];
#pragma unroll
      for (int u = 0; u < kGroupUnroll; ++u) {
        x[u] = source[u] < 0 ? Compute<T>(0)
                             : load_side<T>(a.points, a.wide_points, source[u] * a.dim + d);
      }
#pragma unroll
      for (int u = 0; u < kGroupUnroll; ++u) {
        if (a.centers && source[u] >= 0) {
          const int64_t m = b * a.groups + divide(first + int64_t{u} * groups, a.neighbours);
          x[u] -= load_side<T>(a.centers, a.wide_points, m * a.dim + d);
        }
        if (out[u]) out[u][d] = from_compute<T>(x[u]);
      }
    }
    if constexpr (kVector) {
      copy_features_shifted(a, source, out, lane, lanes);
    } else {
      copy_features(a, source, out, lane, lanes);
    }
  }
}

template <class T>
void launch_group_rows(const GroupRows<T>& a, cudaStream_t stream) {
  constexpr int V = 16 / sizeof(T);
  const bool vector =
      a.channels > 0 && a.channels % V == 0 && reinterpret_cast<uintptr_t>(a.features) % 16 == 0;
  const int64_t items = std::max(a.dim, vector ? a.channels / V : a.channels);
  int lanes = 1;
  while (lanes < 32 && lanes < items) lanes *= 2;
  const int64_t rows = int64_t{kGroupThreads / lanes} * kGroupUnroll;
  const dim3 grid(static_cast<unsigned>(ceil_div(a.groups * a.neighbours, rows)),
                  static_cast<unsigned>(std::min(a.clouds, kMaxGridY)));
  if (vector) {
    group_rows_kernel<T, true><<<grid, kGroupThreads, 0, stream>>>(a, lanes);
  } else {
    group_rows_kernel<T, false><<<grid, kGroupThreads, 0, stream>>>(a, lanes);
  }
}

}  // namespace fusedops
