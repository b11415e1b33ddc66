// dy * act'(.) from what forward saved (see saved_for_backward).
#pragma once

#include "cutlass/activation.cuh"

namespace fusedops {

// sigmoid(v) and its derivative, without the cancellation of s * (1 - s).
template <class T>
struct SigmoidSlope {
  T value, slope;
};
template <Accuracy kAccuracy, class T>
__device__ __forceinline__ SigmoidSlope<T> sigmoid_slope(T v) {
  T e, r;
  if constexpr (kAccuracy == Accuracy::kFloat32) {
    e = standard_exp(v < T(0) ? v : -v);
    r = T(1) / (T(1) + e);
  } else {
    e = ex2_approx(-kLog2E * fabsf(v));
    r = rcp_approx(1.0f + e);
  }
  return {v < T(0) ? e * r : r, e * r * r};
}

template <Activation kActivation, Accuracy kAccuracy, class T>
__device__ __forceinline__ T activation_gradient_as(T dy, T saved) {
  if constexpr (kActivation == Activation::kRelu) {
    return saved <= T(0) ? T(0) : dy;  // NaN lets the gradient pass, as torch does
  } else if constexpr (kActivation == Activation::kGelu && kAccuracy == Accuracy::kFloat32) {
    const T cdf = T(0.5) * (T(1) + standard_erf(saved * T(0.7071067811865476)));
    const T pdf = T(0.3989422804014327) * standard_exp(T(-0.5) * saved * saved);
    return dy * (cdf + saved * pdf);
  } else if constexpr (kActivation == Activation::kGelu) {
    const NormalTail normal = normal_tail(saved);
    const float cdf = saved >= 0.0f ? 1.0f - normal.tail : normal.tail;
    return dy * (cdf + saved * 0.3989422804014327f * normal.gauss);
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    const auto s = sigmoid_slope<kAccuracy>(gelu_tanh_u(saved, 2.0));
    const T inner = T(2 * kSqrt2OverPi) * (T(1) + T(3 * 0.044715) * saved * saved);
    // NOTE: far out z * inner overflows while the slope is 0.
    return dy * (s.value + (s.slope == T(0) ? T(0) : saved * inner * s.slope));
  } else if constexpr (kActivation == Activation::kSilu) {
    const auto s = sigmoid_slope<kAccuracy>(saved);
    return dy * (s.value + saved * s.slope);
  } else if constexpr (kActivation == Activation::kSigmoid) {
    return dy * (T(1) - saved) * saved;
  } else if constexpr (kActivation == Activation::kTanh) {
    return dy * (T(1) - saved * saved);
  } else if constexpr (kActivation == Activation::kRelu2) {
    return saved <= T(0) ? T(0) : dy * (T(2) * saved);
  } else {
    return dy;
  }
}

}  // namespace fusedops
