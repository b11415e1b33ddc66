// Vectors of elements that move as one access, and exact conversions to and from the compute type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "csrc/common/int_math.h"

namespace fusedops {

template <class T, int N>
struct alignas(sizeof(T) * N) Vec {
  T value[N];
};

// The type arithmetic runs in: fp64 for fp64, else fp32.
template <class T>
struct ComputeOf {
  using type = float;
};
template <>
struct ComputeOf<double> {
  using type = double;
};
template <class T>
using Compute = typename ComputeOf<T>::type;

__device__ __forceinline__ float to_compute(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_compute(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_compute(float x) { return x; }
__device__ __forceinline__ double to_compute(double x) { return x; }

template <class T, class C>
__device__ __forceinline__ T from_compute(C x) {
  if constexpr (sizeof(T) == 2) {
    if constexpr (__is_same(T, __half)) {
      return __float2half_rn(x);
    } else {
      return __float2bfloat16_rn(x);
    }
  } else {
    return static_cast<T>(x);
  }
}

}  // namespace fusedops
