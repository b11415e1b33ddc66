// A batch norm with constant statistics, folded into the weight and the bias of what is before it.
#pragma once

#include "csrc/cuda/batch_norm/channel_walk.cuh"

namespace fusedops {

struct FoldProblem {
  int64_t inner;
  const void* weight;  // (outputs, inner)
  void* folded;        // (outputs, inner)
  void* shift;         // (outputs,)
  ChannelVector conv_bias;
  NormArguments norm;
};

// One block for each output channel.
template <class T>
__global__ void __launch_bounds__(kWalkThreads)
    batch_norm_fold_kernel(const __grid_constant__ FoldProblem p) {
  using C = Compute<T>;
  wait_for_predecessor();
  const int64_t output = blockIdx.x;
  const C scale = p.norm.rstd<T>(output) * p.norm.weight.at<T>(output, C(1));
  const T* const from = static_cast<const T*>(p.weight) + output * p.inner;
  T* const to = static_cast<T*>(p.folded) + output * p.inner;
  for (int64_t i = threadIdx.x; i < p.inner; i += kWalkThreads) {
    to[i] = from_compute<T>(to_compute(from[i]) * scale);
  }
  if (threadIdx.x != 0) return;
  const C below = p.conv_bias.at<T>(output, C(0)) - p.norm.mean.at<T>(output, C(0));
  static_cast<T*>(p.shift)[output] =
      from_compute<T>(below * scale + p.norm.bias.at<T>(output, C(0)));
}

}  // namespace fusedops
