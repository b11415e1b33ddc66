// A batch norm with constant statistics, folded into the weight and the bias of what is before it.
#pragma once

#include "csrc/cuda/batch_norm/channel_walk.cuh"

namespace fusedops {

struct FoldProblem {
  int64_t outputs, inner;
  int lanes;           // threads of an output channel, a power of two up to kWalkThreads
  const void* weight;  // (outputs, inner)
  void* folded;        // (outputs, inner)
  void* shift;         // (outputs,)
  ChannelVector conv_bias;
  NormArguments norm;
};

inline constexpr int kFoldUnroll = 4;

// NOTE: all of a row is on its way before the first wait; the kernel is in front of one that takes
// 15 us and more, its latency is what it costs.
template <class T, int kVec>
__global__ void __launch_bounds__(kWalkThreads)
    batch_norm_fold_kernel(const __grid_constant__ FoldProblem p) {
  using C = Compute<T>;
  using V = Vec<T, kVec>;
  wait_for_predecessor();
  const int lane = threadIdx.x % p.lanes;
  const int64_t output = int64_t{blockIdx.x} * (kWalkThreads / p.lanes) + threadIdx.x / p.lanes;
  if (output >= p.outputs) return;
  const T* const from = static_cast<const T*>(p.weight) + output * p.inner;
  T* const to = static_cast<T*>(p.folded) + output * p.inner;
  const int64_t first = int64_t{lane} * kVec, step = int64_t{p.lanes} * kVec;
  V values[kFoldUnroll];
  const auto load = [&](int64_t begin) {
#pragma unroll
    for (int u = 0; u < kFoldUnroll; ++u) {
      const int64_t i = begin + u * step;
      if (i < p.inner) values[u] = *reinterpret_cast<const V*>(from + i);
    }
  };
  load(first);
  const C scale = p.norm.rstd<T>(output) * p.norm.weight.at<T>(output, C(1));
  for (int64_t begin = first; begin < p.inner; begin += kFoldUnroll * step) {
    if (begin != first) load(begin);
#pragma unroll
    for (int u = 0; u < kFoldUnroll; ++u) {
      const int64_t i = begin + u * step;
      if (i >= p.inner) break;
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        values[u].value[k] = from_compute<T>(to_compute(values[u].value[k]) * scale);
      }
      *reinterpret_cast<V*>(to + i) = values[u];
    }
  }
  if (lane != 0) return;
  const C below = p.conv_bias.at<T>(output, C(0)) - p.norm.mean.at<T>(output, C(0));
  static_cast<T*>(p.shift)[output] =
      from_compute<T>(below * scale + p.norm.bias.at<T>(output, C(0)));
}

}  // namespace fusedops
