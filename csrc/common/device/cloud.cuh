// Device-side access to Clouds.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "csrc/common/cloud.h"
#include "csrc/common/device/vec.cuh"
#include "csrc/common/dtype.h"

namespace fusedops {

// Value i of an array of `dtype`, a run-time argument: for loads that are not worth an instance per
// dtype. C is the type arithmetic runs in, float for half inputs and float32, double for float64.
template <class C>
__device__ __forceinline__ C load_as(const void* array, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kFloat16: return static_cast<C>(to_compute(static_cast<const __half*>(array)[i]));
    case DType::kBFloat16:
      return static_cast<C>(to_compute(static_cast<const __nv_bfloat16*>(array)[i]));
    case DType::kFloat32: return static_cast<C>(static_cast<const float*>(array)[i]);
    default: return static_cast<C>(static_cast<const double*>(array)[i]);
  }
}

// The same for an array whose dtype is T, or float where `wide`: one uniform branch.
template <class T>
__device__ __forceinline__ Compute<T> load_side(const void* array, bool wide, int64_t i) {
  return wide ? static_cast<Compute<T>>(__ldg(static_cast<const float*>(array) + i))
              : to_compute(__ldg(static_cast<const T*>(array) + i));
}

}  // namespace fusedops
