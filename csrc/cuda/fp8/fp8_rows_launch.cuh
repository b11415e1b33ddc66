// Instances of fp8_rows_kernel for one dtype, each in a .cu of its own.
#pragma once

#include "csrc/common/dispatch.h"
#include "csrc/cuda/fp8/fp8_rows.cuh"

namespace fusedops {

template <class T>
cudaError_t launch_fp8_rows_of(const Fp8Quantize& p, const LaunchContext& context) {
  const int64_t tiles = ceil_div(p.m, kRowsTile) * ceil_div(p.k, kTile);
  return dispatch_activation(p.activation, [&]<Activation A>(Tag<A>) {
    const auto run = [&](auto kernel) {
      return launch_kernel(kernel, dim3(static_cast<unsigned>(tiles)), dim3(kTileThreads), 0,
                           static_cast<cudaStream_t>(context.stream), context.overlap, p);
    };
    return p.factor ? run(&fp8_rows_kernel<T, int(A), true>)
                    : run(&fp8_rows_kernel<T, int(A), false>);
  });
}

}  // namespace fusedops
