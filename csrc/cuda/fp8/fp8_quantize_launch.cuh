// Instances of fp8_quantize_kernel for one dtype, each in a .cu of its own.
#pragma once

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/fp8/fp8_quantize.cuh"

namespace fusedops {

template <class T, Activation kActivation, bool kPlain>
cudaError_t launch_fp8_kernel(const Fp8Quantize& p, bool maxima_only,
                              const LaunchContext& context) {
  constexpr int kBytes = kQuantizeSharedBytes<T>;
  constexpr auto kKernel = &fp8_quantize_kernel<T, int(kActivation), kPlain>;
  if (const cudaError_t status = allow_shared_memory<kKernel>(context.device, kBytes)) {
    return status;
  }
  const int64_t tiles = ceil_div(p.m, kTile) * ceil_div(p.k, kTile);
  return launch_kernel(kKernel, dim3(static_cast<unsigned>(tiles)), dim3(kTileThreads), kBytes,
                       static_cast<cudaStream_t>(context.stream), context.overlap, p, maxima_only);
}

template <class T>
cudaError_t launch_fp8_quantize_of(const Fp8Quantize& p, bool maxima_only,
                                   const LaunchContext& context) {
  if (p.activation == Activation::kNone && p.factor == nullptr) {
    return launch_fp8_kernel<T, Activation::kNone, true>(p, maxima_only, context);
  }
  return dispatch_activation(p.activation, [&]<Activation A>(Tag<A>) {
    return launch_fp8_kernel<T, A, false>(p, maxima_only, context);
  });
}

}  // namespace fusedops
