// y = x * scale, elementwise. The template op: copy this file, template_scale.cu and
// template_scale.cpp to start a new op (CONTRIBUTING.md). Device code takes raw pointers,
// sizes and a stream; no torch header is reachable from here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/common/device/vec.cuh"

namespace fusedops {

inline constexpr int kScaleThreads = 256;
inline constexpr int kScaleBlocksPerSm = 8;  // 2048 resident threads per SM / kScaleThreads

template <class T>
__global__ void __launch_bounds__(kScaleThreads)
    template_scale_kernel(const T* __restrict__ x,  // [count]
                          T* __restrict__ y,        // [count]
                          int64_t count, Compute<T> scale) {
  // Grid-stride loop, 64-bit: count may exceed 2^31
  const int64_t step = int64_t{gridDim.x} * kScaleThreads;
  for (int64_t i = int64_t{blockIdx.x} * kScaleThreads + threadIdx.x; i < count; i += step) {
    y[i] = from_compute<T>(to_compute(x[i]) * scale);
  }
}

inline int template_scale_blocks(int64_t count, int sm_count) {
  return static_cast<int>(
      std::min<int64_t>(ceil_div(count, kScaleThreads), int64_t{sm_count} * kScaleBlocksPerSm));
}

template <class T>
void launch_template_scale(const T* x, T* y, int64_t count, double scale, int blocks,
                           cudaStream_t stream) {
  template_scale_kernel<T>
      <<<blocks, kScaleThreads, 0, stream>>>(x, y, count, static_cast<Compute<T>>(scale));
}

}  // namespace fusedops
