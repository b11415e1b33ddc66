// Device pieces that building and searching the index of common/point_grid.h share.
#pragma once

#include "csrc/common/point_grid.h"
#include "csrc/cuda/points/neighbours.cuh"

namespace fusedops {

template <class T>
__device__ __forceinline__ void load_coordinates(const Clouds& clouds, DType dtype, int64_t row,
                                                 T (&out)[3]) {
  const int dim = static_cast<int>(clouds.dim);
#pragma unroll
  for (int d = 0; d < 3; ++d) {
    out[d] = d < dim ? load_as<T>(clouds.points, dtype, row * dim + d) : T{0};
  }
}

template <class T>
__device__ __forceinline__ T warp_min(T value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value = fmin(value, __shfl_xor_sync(kFullWarp, value, step));
  }
  return value;
}
template <class T>
__device__ __forceinline__ T warp_max(T value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value = fmax(value, __shfl_xor_sync(kFullWarp, value, step));
  }
  return value;
}

__device__ __forceinline__ uint32_t index_of(float w) { return __float_as_uint(w); }
__device__ __forceinline__ uint32_t index_of(double w) {
  return static_cast<uint32_t>(__double_as_longlong(w));
}
template <class T>
__device__ __forceinline__ T index_as(uint32_t index) {
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(index);
  } else {
    return __longlong_as_double(index);
  }
}

}  // namespace fusedops
