// dy * act'(.) from what forward saved (see saved_for_backward).
#pragma once

#include "csrc/common/device/activation.cuh"

namespace fusedops {

// ValueAndSlope holds a function's value and its derivative.
template <class T>
struct ValueAndSlope {
  T value, slope;
};

// sigmoid(v); the slope of fp32 results without the cancellation of s * (1 - s), which costs others
// less than 2^-22.
__device__ __forceinline__ ValueAndSlope<float> sigmoid_slope_ex2(float x) {  // x = -v log2(e)
  const float s = rcp_approx(1.0f + ex2_approx(x));
  return {s, s - s * s};
}
template <Accuracy kAccuracy, class T>
__device__ __forceinline__ ValueAndSlope<T> sigmoid_slope(T v) {
  if constexpr (kAccuracy == Accuracy::kFloat32) {
    const T e = standard_exp(v < T(0) ? v : -v);
    const T r = T(1) / (T(1) + e);
    return {v < T(0) ? e * r : r, e * r * r};
  } else {
    return sigmoid_slope_ex2(-kLog2E * v);
  }
}

// gelu_tanh(z). NOTE: far out the square is cut off, and z meets the slope
// first, which is 0 there: nothing overflows.
template <Accuracy kAccuracy, class T>
__device__ __forceinline__ ValueAndSlope<T> gelu_tanh_slope(T z) {
  constexpr double kLinear = 2 * kSqrt2OverPi, kCubic = 0.044715 * kLinear;
  const T square = min(z * z, T(256));
  ValueAndSlope<T> s;
  if constexpr (kAccuracy == Accuracy::kFloat32) {
    s = sigmoid_slope<kAccuracy>(z * (T(kLinear) + T(kCubic) * square));
  } else {
    constexpr double kScale = -1.4426950408889634;
    s = sigmoid_slope_ex2(z * (float(kScale * kLinear) + float(kScale * kCubic) * square));
  }
  return {z * s.value, s.value + z * s.slope * (T(kLinear) + T(3 * kCubic) * square)};
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
    return dy * gelu_tanh_slope<kAccuracy>(saved).slope;
  } else if constexpr (kActivation == Activation::kSilu) {
    const auto s = sigmoid_slope<kAccuracy>(saved);
    return dy * (s.value + saved * s.slope);
  } else if constexpr (kActivation == Activation::kSigmoid) {
    return dy * (T(1) - saved) * saved;
  } else if constexpr (kActivation == Activation::kTanh) {
    return dy * (T(1) - saved * saved);
  } else if constexpr (kActivation == Activation::kRelu2) {
    return saved <= T(0) ? T(0) : dy * (T(2) * saved);
  } else if constexpr (kActivation == Activation::kQuickGelu) {
    constexpr T kScale = T(kQuickGeluScale);
    const auto s = sigmoid_slope<kAccuracy>(kScale * saved);
    return dy * (s.value + kScale * saved * s.slope);
  } else if constexpr (kActivation == Activation::kLeakyRelu) {
    return saved > T(0) ? dy : T(kLeakyReluSlope) * dy;
  } else if constexpr (kActivation == Activation::kHardswish) {
    const T inside = dy * (saved * T(1.0 / 3) + T(0.5));
    return saved <= T(-3) ? T(0) : saved < T(3) ? inside : dy;
  } else if constexpr (kActivation == Activation::kMish) {
    const auto factor = mish_factor<kAccuracy>(saved);
    return dy * (factor.value + saved * factor.slope);
  } else if constexpr (kActivation == Activation::kSoftplus) {
    return saved > T(20) ? dy : dy * sigmoid_slope<kAccuracy>(saved).value;
  } else if constexpr (kActivation == Activation::kElu) {
    return saved <= T(0) ? dy * exp_as<kAccuracy>(saved) : dy;
  } else if constexpr (kActivation == Activation::kRelu6) {
    return saved <= T(0) || saved >= T(6) ? T(0) : dy;
  } else {
    static_assert(kActivation == Activation::kNone);
    return dy;
  }
}

}  // namespace fusedops
