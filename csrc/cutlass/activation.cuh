// Activations and their derivatives, shared by GEMM epilogues and elementwise kernels.
// kPrecise = false serves half precision outputs: base-2 exponentials and approximate division with
// a relative error of about 2^-21, far below one rounding of fp16. kPrecise = true uses the
// accurate functions and serves fp32 outputs.
#pragma once

#include "common/activation.h"

namespace fusedops {

// ---- scalar pieces ----

// Maximum with zero that keeps NaN, as torch's relu does.
__device__ __forceinline__ float relu(float z) {
  float r;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(r) : "f"(z));
  return r;
}
__device__ __forceinline__ double relu(double z) { return z < 0.0 ? 0.0 : z; }

// numerator / (1 + exp(-z)): sigmoid for numerator 1, silu for numerator z.
template <bool kPrecise>
__device__ __forceinline__ float over_one_plus_exp(float numerator, float z) {
  if constexpr (kPrecise) {
    return numerator / (1.0f + expf(-z));
  } else {
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(z * -1.4426950408889634f));
    return __fdividef(numerator, 1.0f + e);
  }
}
template <bool kPrecise>
__device__ __forceinline__ double over_one_plus_exp(double numerator, double z) {
  return numerator / (1.0 + exp(-z));
}

// The argument of the logistic form of tanh-GELU: 0.5 (1 + tanh(u)) = sigmoid(2 u), u = sqrt(2/pi)
// (z + 0.044715 z^3).
template <class T>
__device__ __forceinline__ T gelu_tanh_twice_u(T z) {
  constexpr T kTwoSqrt2OverPi = T(1.5957691216057308);
  return kTwoSqrt2OverPi * z * (T(1) + T(0.044715) * z * z);
}

__device__ __forceinline__ float standard_erf(float z) { return erff(z); }
__device__ __forceinline__ double standard_erf(double z) { return erf(z); }
__device__ __forceinline__ float standard_tanh(float z) { return tanhf(z); }
__device__ __forceinline__ double standard_tanh(double z) { return tanh(z); }
__device__ __forceinline__ float standard_exp(float z) { return expf(z); }
__device__ __forceinline__ double standard_exp(double z) { return exp(z); }

// ---- act(z) ----

template <Activation kActivation, bool kPrecise, class T>
__device__ __forceinline__ T activate_as(T z) {
  if constexpr (kActivation == Activation::kRelu) {
    return relu(z);
  } else if constexpr (kActivation == Activation::kGelu) {
    return T(0.5) * z * (T(1) + standard_erf(z * T(0.7071067811865476)));
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    return over_one_plus_exp<kPrecise>(z, gelu_tanh_twice_u(z));
  } else if constexpr (kActivation == Activation::kSilu) {
    return over_one_plus_exp<kPrecise>(z, z);
  } else if constexpr (kActivation == Activation::kSigmoid) {
    return over_one_plus_exp<kPrecise>(T(1), z);
  } else if constexpr (kActivation == Activation::kTanh) {
    return standard_tanh(z);
  } else if constexpr (kActivation == Activation::kRelu2) {
    T r = relu(z);
    return r * r;
  } else {
    return z;
  }
}

// ---- dy * act'(.), from what forward saved (see saved_for_backward) ----

template <Activation kActivation, bool kPrecise, class T>
__device__ __forceinline__ T activation_gradient_as(T dy, T saved) {
  if constexpr (kActivation == Activation::kRelu) {
    return saved <= T(0) ? T(0) : dy;  // NaN lets the gradient pass, as torch does
  } else if constexpr (kActivation == Activation::kGelu) {
    T cdf = T(0.5) * (T(1) + standard_erf(saved * T(0.7071067811865476)));
    T pdf = T(0.3989422804014327) * standard_exp(T(-0.5) * saved * saved);
    return dy * (cdf + saved * pdf);
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    T s = over_one_plus_exp<kPrecise>(T(1), gelu_tanh_twice_u(saved));
    T slope = T(1.5957691216057308) * (T(1) + T(3 * 0.044715) * saved * saved);
    return dy * (s + saved * s * (T(1) - s) * slope);
  } else if constexpr (kActivation == Activation::kSilu) {
    T s = over_one_plus_exp<kPrecise>(T(1), saved);
    return dy * s * (T(1) + saved * (T(1) - s));
  } else if constexpr (kActivation == Activation::kSigmoid) {
    return dy * (T(1) - saved) * saved;
  } else if constexpr (kActivation == Activation::kTanh) {
    return dy * (T(1) - saved * saved);
  } else if constexpr (kActivation == Activation::kRelu2) {
    return dy * T(2) * relu(saved);
  } else {
    return dy;
  }
}

// ---- run-time choice: one uniform switch, the loop over elements inside ----

// Calls body.template operator()<kActivation>() for the run-time code.
template <class Body>
__device__ __forceinline__ void with_activation(Activation activation, Body&& body) {
  switch (activation) {
    case Activation::kNone: return body.template operator()<Activation::kNone>();
    case Activation::kRelu: return body.template operator()<Activation::kRelu>();
    case Activation::kGelu: return body.template operator()<Activation::kGelu>();
    case Activation::kGeluTanh: return body.template operator()<Activation::kGeluTanh>();
    case Activation::kSilu: return body.template operator()<Activation::kSilu>();
    case Activation::kSigmoid: return body.template operator()<Activation::kSigmoid>();
    case Activation::kTanh: return body.template operator()<Activation::kTanh>();
    case Activation::kRelu2: return body.template operator()<Activation::kRelu2>();
  }
}

// Array: anything with kElements and operator[] over float or double (cutlass::Array).
template <bool kPrecise = false, class Array>
__device__ __forceinline__ void activate_array(Activation activation, Array& z) {
  with_activation(activation, [&]<Activation kActivation>() {
#pragma unroll
    for (int i = 0; i < int(Array::kElements); ++i) {
      z[i] = activate_as<kActivation, kPrecise>(z[i]);
    }
  });
}

}  // namespace fusedops
