// dx = f(x, scale, shift) with per-result coefficients: the gradients of reductions that read x.
#pragma once

#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/cuda/reduce/reduce_backward.h"

namespace fusedops {

inline constexpr int kReduceBackwardThreads = 256;

template <ReduceGradient kGradient, class C>
__device__ __forceinline__ C reduce_gradient(C x, C scale, C shift) {
  const C sign = static_cast<C>((x > 0) - (x < 0));
  switch (kGradient) {
    case ReduceGradient::kAffine: return scale * (x - shift);
    case ReduceGradient::kSign: return scale * sign;
    case ReduceGradient::kExp: return scale * exp(x - shift);
    // NOTE: products, not choices: without an equal element (NaN) scale is infinite, dx NaN.
    case ReduceGradient::kEqual: return scale * static_cast<C>(x == shift);
    case ReduceGradient::kEqualAbs: return sign * (scale * static_cast<C>(abs(x) == shift));
    default: return shift == 0 ? scale / x : shift == 1 && x == 0 ? scale : C{0};
  }
}

// x and dx contiguous. kVec elements of the innermost dimension share their outer coordinates.
template <class T, int kVec, ReduceGradient kGradient>
__global__ void __launch_bounds__(kReduceBackwardThreads)
    reduce_backward_kernel(const __grid_constant__ ReduceBackward p) {
  using C = Compute<T>;
  wait_for_predecessor();
  const int64_t first = (int64_t{blockIdx.x} * kReduceBackwardThreads + threadIdx.x) * kVec;
  if (first >= p.count) return;

  // Coefficients
  int64_t rest = first, at = 0;
  for (int i = p.ndim - 1; i >= 0; --i) {
    const int64_t outer = i == 0 ? 0 : rest / p.size[i];
    at += (rest - outer * p.size[i]) * p.stride[i];
    rest = outer;
  }
  const C* scale = static_cast<const C*>(p.scale) + at;
  const C* shift = p.shift ? static_cast<const C*>(p.shift) + at : nullptr;

  // Elements
  const int64_t step = p.stride[p.ndim - 1];
  const auto x = *reinterpret_cast<const Vec<T, kVec>*>(static_cast<const T*>(p.x) + first);
  Vec<T, kVec> dx;
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    dx.value[i] = from_compute<T>(reduce_gradient<kGradient>(
        to_compute(x.value[i]), scale[i * step], shift ? shift[i * step] : C{0}));
  }
  *reinterpret_cast<Vec<T, kVec>*>(static_cast<T*>(p.dx) + first) = dx;
}

}  // namespace fusedops
