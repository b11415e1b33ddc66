// Activations and their derivatives on the host, in float or double. Chosen so that nothing
// overflows into NaN, tails keep their relative accuracy, and NaN goes in as NaN comes out.
#pragma once

#include <cmath>
#include <numbers>

#include "common/activation.h"

namespace fusedops::cpu {

// exp(-|z|) never overflows and keeps the small tail.
template <typename T>
T sigmoid(T z) {
  const T e = std::exp(-std::abs(z));
  return (z < T(0) ? e : T(1)) / (T(1) + e);
}

template <typename T>
inline constexpr T kGeluTanhScale = T(0.79788456080286535587989211986876);  // sqrt(2 / pi)
template <typename T>
inline constexpr T kGeluTanhCubic = T(0.044715);

// NOTE: erfc and sigmoid instead of 1 + erf and 1 + tanh: no cancellation for negative z.
template <Activation A, typename T>
T activate(T z) {
  if constexpr (A == Activation::kRelu) {
    return z <= T(0) ? T(0) : z;
  } else if constexpr (A == Activation::kGelu) {
    return T(0.5) * z * std::erfc(-z * T(std::numbers::sqrt2 / 2));
  } else if constexpr (A == Activation::kGeluTanh) {
    return z * sigmoid(T(2) * kGeluTanhScale<T> * z * (T(1) + kGeluTanhCubic<T> * z * z));
  } else if constexpr (A == Activation::kSilu) {
    return z * sigmoid(z);
  } else if constexpr (A == Activation::kSigmoid) {
    return sigmoid(z);
  } else if constexpr (A == Activation::kTanh) {
    return std::tanh(z);
  } else if constexpr (A == Activation::kRelu2) {
    return z <= T(0) ? T(0) : z * z;
  } else {
    return z;
  }
}

// The derivative, from the output for relu, sigmoid and tanh, from the pre-activation otherwise
// (saved_for_backward).
template <Activation A, typename T>
T derivative(T saved) {
  if constexpr (A == Activation::kRelu) {
    return saved <= T(0) ? T(0) : T(1);
  } else if constexpr (A == Activation::kGelu) {
    const T pdf =
        T(0.5 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi) * std::exp(T(-0.5) * saved * saved);
    return T(0.5) * std::erfc(-saved * T(std::numbers::sqrt2 / 2)) + saved * pdf;
  } else if constexpr (A == Activation::kGeluTanh) {
    // NOTE: 0 or 1 to the last bit beyond 30 (fp64: s(1 - s) underflows); keeps z^3 finite.
    const T z = saved > T(30) ? T(30) : saved < T(-30) ? T(-30) : saved;
    const T s = sigmoid(T(2) * kGeluTanhScale<T> * z * (T(1) + kGeluTanhCubic<T> * z * z));
    const T slope = T(2) * kGeluTanhScale<T> * (T(1) + T(3) * kGeluTanhCubic<T> * z * z);
    return s + z * s * (T(1) - s) * slope;
  } else if constexpr (A == Activation::kSilu) {
    const T s = sigmoid(saved);
    return s * (T(1) + saved * (T(1) - s));
  } else if constexpr (A == Activation::kSigmoid) {
    return saved * (T(1) - saved);
  } else if constexpr (A == Activation::kTanh) {
    return (T(1) - saved) * (T(1) + saved);
  } else if constexpr (A == Activation::kRelu2) {
    return saved <= T(0) ? T(0) : T(2) * saved;
  } else {
    return T(1);
  }
}

}  // namespace fusedops::cpu
