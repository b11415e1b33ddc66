// act(z) and act'(z) together, for backward passes that need both: they share an exponential.
#pragma once

#include "cuda/activation_gradient.cuh"

namespace fusedops {

template <class T>
struct ValueAndSlope {
  T value, slope;
};

template <Activation kActivation, Accuracy kAccuracy, class T>
__device__ __forceinline__ ValueAndSlope<T> value_and_slope(T z) {
  if constexpr (kActivation == Activation::kSilu) {
    const auto s = sigmoid_slope<kAccuracy>(z);
    return {z * s.value, s.value + z * s.slope};
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    const auto s = sigmoid_slope<kAccuracy>(gelu_tanh_u(z, 2.0));
    const T inner = T(2 * kSqrt2OverPi) * (T(1) + T(3 * 0.044715) * z * z);
    // NOTE: far out z * inner overflows while the slope is 0.
    return {z * s.value, s.value + (s.slope == T(0) ? T(0) : z * inner * s.slope)};
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

// The gradient before act from that behind it: where relu stops it, an infinite one as well.
template <Activation kActivation, class T>
__device__ __forceinline__ T times_slope(T gradient, T slope) {
  if constexpr (kActivation == Activation::kRelu || kActivation == Activation::kRelu2) {
    if (slope == T(0)) return T(0);
  }
  return gradient * slope;
}

}  // namespace fusedops
