// A gradient times two numbers that only the device knows; untouched where their product is 1.
#pragma once

#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/row_chunk.cuh"
#include "csrc/common/dtype.h"
#include "csrc/common/launch_context.h"

namespace fusedops {

inline constexpr int kScaleGradientThreads = 256, kScaleGradientBlocks = 8;  // on an SM

struct DeviceNumber {
  const void* data;
  DType dtype;

  __device__ __forceinline__ double value() const {
    switch (dtype) {
      case DType::kFloat16: return to_compute(*static_cast<const __half*>(data));
      case DType::kBFloat16: return to_compute(*static_cast<const __nv_bfloat16*>(data));
      case DType::kFloat32: return *static_cast<const float*>(data);
      default: return *static_cast<const double*>(data);
    }
  }
};

// kVec: elements that are aligned together; what is behind the last of them goes one by one.
template <class T, int kVec>
__global__ void __launch_bounds__(kScaleGradientThreads)
    scale_gradient_kernel(T* gradient, int64_t count, DeviceNumber a, DeviceNumber b) {
  wait_for_predecessor();
  const double product = a.value() * b.value();
  if (product == 1) return;
  const auto factor = static_cast<Compute<T>>(product);
  const int64_t step = int64_t{gridDim.x} * blockDim.x, chunks = count / kVec;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < chunks; i += step) {
    Compute<T> value[kVec];
    if constexpr (kVec == 1) {
      gradient[i] = from_compute<T>(to_compute(gradient[i]) * factor);
    } else {
      const auto held = load_packed<T, kVec>(gradient + i * kVec);
#pragma unroll
      for (int e = 0; e < kVec; ++e) value[e] = held.at(e) * factor;
      store_packed(gradient + i * kVec, pack<T>(value));
    }
  }
  const int64_t tail = chunks * kVec + first;
  if (tail < count) gradient[tail] = from_compute<T>(to_compute(gradient[tail]) * factor);
}

}  // namespace fusedops
