// Instances of fp8_hidden_kernel for one dtype, each in a .cu of its own.
#pragma once

#include <algorithm>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/fp8/fp8_hidden.cuh"

namespace fusedops {

template <class T, Activation kActivation, bool kGated>
cudaError_t launch_fp8_hidden_kernel(const Fp8Hidden& p, const LaunchContext& context) {
  constexpr int kBytes = kHiddenSharedBytes<kGated>;
  constexpr auto kKernel = &fp8_hidden_kernel<T, int(kActivation), kGated>;
  if (const cudaError_t status = allow_shared_memory<kKernel>(context.device, kBytes)) {
    return status;
  }
  const int64_t tiles = ceil_div(p.m, kTile) * ceil_div(p.k, kTile);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(tiles, 2 * context.sm_count));
  return launch_kernel(kKernel, dim3(grid), dim3(kTileThreads), kBytes,
                       static_cast<cudaStream_t>(context.stream), context.overlap, p);
}

template <class T>
cudaError_t launch_fp8_hidden_of(const Fp8Hidden& p, const LaunchContext& context) {
  return dispatch_activation(p.activation, [&]<Activation A>(Tag<A>) {
    return p.gated ? launch_fp8_hidden_kernel<T, A, true>(p, context)
                   : launch_fp8_hidden_kernel<T, A, false>(p, context);
  });
}

}  // namespace fusedops
