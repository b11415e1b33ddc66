// What blocks summed of a weight's gradient, joined in a fixed order.
#pragma once

#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/vec.cuh"

namespace fusedops {

inline constexpr int kJoinThreads = 256;
inline constexpr int kJoinRows = kJoinThreads / 32;  // threads that share an element's sums

struct JoinProblem {
  const void* partial;  // (blocks, taps, channels) of Compute
  void* to;             // (channels, taps)
  unsigned blocks;
  int64_t channels, taps;
};

template <class T>
__global__ void __launch_bounds__(kJoinThreads)
    join_weight_kernel(const __grid_constant__ JoinProblem p) {
  using C = Compute<T>;
  constexpr int kUnroll = 8;
  __shared__ double shared[kJoinThreads];
  wait_for_predecessor();
  const int64_t count = p.taps * p.channels;
  const int64_t i = int64_t{blockIdx.x} * 32 + threadIdx.x % 32;
  const C* const from = static_cast<const C*>(p.partial);
  double total = 0;
  for (unsigned b = threadIdx.x / 32; b < p.blocks; b += kJoinRows * kUnroll) {
    C part[kUnroll];  // on their way at once
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const unsigned block = b + kJoinRows * u;
      part[u] = block < p.blocks && i < count ? from[block * count + i] : C(0);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) total += part[u];
  }
  shared[threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.x >= 32 || i >= count) return;
  double sum = 0;
  for (int y = 0; y < kJoinRows; ++y) sum += shared[y * 32 + threadIdx.x];
  static_cast<T*>(p.to)[i % p.channels * p.taps + i / p.channels] =
      from_compute<T>(static_cast<C>(sum));
}

}  // namespace fusedops
