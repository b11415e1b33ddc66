// act(z) and act'(z) together, for backward passes that need both: they share an exponential.
#pragma once

#include "csrc/common/device/activation_gradient.cuh"

namespace fusedops {

template <Activation kActivation, Accuracy kAccuracy, class T>
__device__ __forceinline__ ValueAndSlope<T> value_and_slope(T z) {
  if constexpr (kActivation == Activation::kSilu) {
    const auto s = sigmoid_slope<kAccuracy>(z);
    return {z * s.value, s.value + z * s.slope};
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    return gelu_tanh_slope<kAccuracy>(z);
  } else if constexpr (kActivation == Activation::kGelu && kAccuracy != Accuracy::kFloat32) {
    const NormalTail normal = normal_tail(z);
    const float cdf = z >= 0.0f ? 1.0f - normal.tail : normal.tail;
    return {z * cdf, cdf + z * 0.3989422804014327f * normal.gauss};
  } else {
    // NOTE: tanh.approx is too coarse for a slope that subtracts its square from 1.
    constexpr Accuracy kFine = kAccuracy == Accuracy::kBFloat16 ? Accuracy::kFloat16 : kAccuracy;
    const T value = activate_as<kActivation, kFine>(z);
    constexpr bool kFromOutput = saved_for_backward(kActivation) == Saved::kOutput;
    return {value, activation_gradient_as<kActivation, kAccuracy>(T(1), kFromOutput ? value : z)};
  }
}

// The gradient before act from that behind it: where a relu stops it, an infinite one as well.
template <Activation kActivation, class T>
__device__ __forceinline__ T times_slope(T gradient, T slope) {
  constexpr Activation kA = kActivation;
  if constexpr (kA == Activation::kRelu || kA == Activation::kRelu2 || kA == Activation::kRelu6 ||
                kA == Activation::kHardswish) {
    if (slope == T(0)) return T(0);
  }
  return gradient * slope;
}

}  // namespace fusedops
