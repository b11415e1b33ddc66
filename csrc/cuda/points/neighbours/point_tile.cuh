// Points in shared memory, one coordinate after the other.
#pragma once

#include "csrc/cuda/points/neighbours.cuh"

namespace fusedops {

inline constexpr int kTileUnroll = 8;  // loads that a thread has in flight

// tile[d][point] of `count` rows; NaN up to `padded`.
template <int Threads, class S>
__device__ __forceinline__ void load_tile_as(const S* __restrict__ rows, int count, int padded,
                                             int room, int dim, float* tile) {
  const int total = padded * dim;
  for (int first = threadIdx.x; first < total; first += Threads * kTileUnroll) {
    float value[kTileUnroll];
#pragma unroll
    for (int u = 0; u < kTileUnroll; ++u) {
      const int i = first + u * Threads;
      value[u] = i < count * dim ? static_cast<float>(to_compute(rows[i])) : NAN;
    }
#pragma unroll
    for (int u = 0; u < kTileUnroll; ++u) {
      const int i = first + u * Threads;
      const int point = i / dim;
      if (i < total) tile[(i - point * dim) * room + point] = value[u];
    }
  }
}

// Up to `room` rows from `first` on, rounded up to 64 with NaN; `rows` are left in the cloud.
template <int Threads>
__device__ __forceinline__ void load_tile(const Clouds& clouds, DType dtype, int64_t first,
                                          int64_t rows, int room, float* tile) {
  const int count = static_cast<int>(min(rows, int64_t{room}));
  const int padded = min((count + 63) / 64 * 64, room);
  const int dim = static_cast<int>(clouds.dim);
  const int64_t at = first * dim;
  const auto load = [&]<class S>(const S* points) {
    load_tile_as<Threads>(points + at, count, padded, room, dim, tile);
  };
  switch (dtype) {
    case DType::kFloat16: return load(static_cast<const __half*>(clouds.points));
    case DType::kBFloat16: return load(static_cast<const __nv_bfloat16*>(clouds.points));
    case DType::kFloat32: return load(static_cast<const float*>(clouds.points));
    default: return load(static_cast<const double*>(clouds.points));
  }
}

}  // namespace fusedops
