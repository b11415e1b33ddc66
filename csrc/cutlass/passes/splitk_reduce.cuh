// Finishes a split-K product: d = act(sum of slices + bias), slices added in order (deterministic);
// optionally stores the pre-activation. Zero slices give act(bias): the result of an empty
// contraction.
#pragma once

#include "csrc/common/device/activation.cuh"
#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/vec.cuh"

namespace fusedops {

struct SplitKReduce {
  const float* partial;  // (slices, elements)
  int64_t slices;
  int64_t elements, cols;  // elements = rows * cols
  const void* bias;        // (cols,) or null
  void* d;
  void* preact;  // or null
  Activation activation;
  bool accumulate;  // add to fp32 d
};

inline constexpr int kSplitKReduceThreads = 256;

template <class T, class Out, int kVec>
__global__ void __launch_bounds__(kSplitKReduceThreads) splitk_reduce_kernel(SplitKReduce p) {
  using C = Compute<T>;
  wait_for_predecessor();
  const int64_t first = (int64_t{blockIdx.x} * kSplitKReduceThreads + threadIdx.x) * kVec;
  if (first >= p.elements) return;
  C z[kVec] = {};
#pragma unroll 8
  for (int64_t s = 0; s < p.slices; ++s) {
    const auto part =
        *reinterpret_cast<const Vec<float, kVec>*>(p.partial + s * p.elements + first);
#pragma unroll
    for (int i = 0; i < kVec; ++i) z[i] += part.value[i];
  }
  if (p.accumulate) {
    const auto before = *reinterpret_cast<const Vec<Out, kVec>*>(static_cast<Out*>(p.d) + first);
#pragma unroll
    for (int i = 0; i < kVec; ++i) z[i] += to_compute(before.value[i]);
  }
  if (p.bias != nullptr) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      z[i] += to_compute(static_cast<const T*>(p.bias)[(first + i) % p.cols]);
    }
  }
  Vec<Out, kVec> out;
  if (p.preact != nullptr) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) out.value[i] = from_compute<Out>(z[i]);
    *reinterpret_cast<Vec<Out, kVec>*>(static_cast<Out*>(p.preact) + first) = out;
  }
  with_activation(p.activation, [&]<Activation kActivation>() {
    resolve_rare<kActivation>(p.activation, [&]<Activation kNow>() {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        out.value[i] = from_compute<Out>(activate_as<kNow, kAccuracyOf<Out>>(z[i]));
      }
    });
  });
  *reinterpret_cast<Vec<Out, kVec>*>(static_cast<Out*>(p.d) + first) = out;
}

}  // namespace fusedops
