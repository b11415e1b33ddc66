// Activations, shared by GEMM epilogues and elementwise kernels (their derivatives:
// activation_gradient.cuh). An epilogue shares its registers' bandwidth with the tensor cores,
// so each output type gets the cheapest formula whose error stays under one rounding of that type.
#pragma once

#include <cuda_bf16.h>

#include "csrc/common/activation.h"

namespace fusedops {

// What the result is rounded to. kFloat32 also stands for fp64 arithmetic.
// kBFloat16: tanh.approx.f32, relative error 2^-11; gelu_tanh and silu are then within |z| 2^-12 of
// the exact value. kFloat16: ex2.approx and rcp.approx, relative error about 2^-22.
enum class Accuracy { kBFloat16, kFloat16, kFloat32 };

template <class T>
inline constexpr Accuracy kAccuracyOf = sizeof(T) > 2 ? Accuracy::kFloat32 : Accuracy::kFloat16;
template <>
inline constexpr Accuracy kAccuracyOf<__nv_bfloat16> = Accuracy::kBFloat16;

// ---- hardware approximations ----

__device__ __forceinline__ float ex2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float rcp_approx(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float tanh_approx(float x) {
  float r;
  asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

inline constexpr float kLog2E = 1.4426950408889634f;

// ---- scalar pieces ----

// Maximum with zero that keeps NaN, as torch's relu does.
__device__ __forceinline__ float relu(float z) {
  float r;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(r) : "f"(z));
  return r;
}
__device__ __forceinline__ double relu(double z) { return z < 0.0 ? 0.0 : z; }

__device__ __forceinline__ float standard_erf(float z) { return erff(z); }
__device__ __forceinline__ double standard_erf(double z) { return erf(z); }
__device__ __forceinline__ float standard_tanh(float z) { return tanhf(z); }
__device__ __forceinline__ double standard_tanh(double z) { return tanh(z); }
__device__ __forceinline__ float standard_exp(float z) { return expf(z); }
__device__ __forceinline__ double standard_exp(double z) { return exp(z); }
__device__ __forceinline__ float standard_expm1(float z) { return expm1f(z); }
__device__ __forceinline__ double standard_expm1(double z) { return expm1(z); }
__device__ __forceinline__ float standard_log1p(float z) { return log1pf(z); }
__device__ __forceinline__ double standard_log1p(double z) { return log1p(z); }

// numerator / (1 + exp(-z)): sigmoid for numerator 1, silu for numerator z.
template <Accuracy kAccuracy, class T>
__device__ __forceinline__ T over_one_plus_exp(T numerator, T z) {
  if constexpr (kAccuracy == Accuracy::kFloat32) {
    return numerator / (T(1) + standard_exp(-z));
  } else {
    return numerator * rcp_approx(1.0f + ex2_approx(-kLog2E * z));
  }
}

// The logistic form of tanh-GELU: 0.5 (1 + tanh(u)) = sigmoid(2 u) with u = sqrt(2/pi) (z +
// 0.044715 z^3).
inline constexpr double kSqrt2OverPi = 0.7978845608028654;
template <class T>
__device__ __forceinline__ T gelu_tanh_u(T z, double scale = 1.0) {
  return z * (T(scale * kSqrt2OverPi) + T(scale * kSqrt2OverPi * 0.044715) * (z * z));
}

// exp(-z^2 / 2) and the lower tail of the normal distribution at -|z|, absolute error 1e-7.
// Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
struct NormalTail {
  float gauss, tail;
};
__device__ __forceinline__ NormalTail normal_tail(float z) {
  const float x = fabsf(z) * 0.7071067811865476f;
  const float t = rcp_approx(1.0f + 0.3275911f * x);
  const float gauss = ex2_approx(-kLog2E * x * x);
  float poly = 0.5f * 1.061405429f;
  poly = poly * t - 0.5f * 1.453152027f;
  poly = poly * t + 0.5f * 1.421413741f;
  poly = poly * t - 0.5f * 0.284496736f;
  poly = poly * t + 0.5f * 0.254829592f;
  return {gauss, poly * t * gauss};
}

// tanh in fp32 arithmetic for an fp16 result; a series where the exponential form would cancel.
__device__ __forceinline__ float tanh_half(float z) {
  const float x = fabsf(z);
  const float e = ex2_approx(-2.0f * kLog2E * x);
  const float large = (1.0f - e) * rcp_approx(1.0f + e);
  const float small = x * (1.0f - x * x * (1.0f / 3.0f));
  return copysignf(x < 0.05f ? small : large, z);
}

// exp(z), without a result below 2^-126 where the accuracy is not that of fp32.
template <Accuracy kAccuracy, class T>
__device__ __forceinline__ T exp_as(T z) {
  if constexpr (kAccuracy == Accuracy::kFloat32) {
    return standard_exp(z);
  } else {
    return ex2_approx(kLog2E * z);
  }
}

// exp(z) - 1 for z <= 0: a series where the difference would cancel, relative error 2^-16.
template <Accuracy kAccuracy, class T>
__device__ __forceinline__ T expm1_as(T z) {
  if constexpr (kAccuracy == Accuracy::kFloat32) {
    return standard_expm1(z);
  } else {
    const float series = z * (1.0f + z * (0.5f + z * (1.0f / 6.0f)));
    return z > -0.0625f ? series : ex2_approx(kLog2E * z) - 1.0f;
  }
}

// log(1 + exp(z)). The polynomial is log(1 + e) / e for e in [0, 1], interpolated at Chebyshev's
// points, relative error 2^-20.
template <Accuracy kAccuracy, class T>
__device__ __forceinline__ T softplus(T z) {
  if constexpr (kAccuracy == Accuracy::kFloat32) {
    return z > T(20) ? z : standard_log1p(standard_exp(z));
  } else {
    const float e = ex2_approx(-kLog2E * fabsf(z));
    float poly = -0.00837115255f;
    poly = poly * e + 0.0434938998f;
    poly = poly * e - 0.106850029f;
    poly = poly * e + 0.176874767f;
    poly = poly * e - 0.244747742f;
    poly = poly * e + 0.332719284f;
    poly = poly * e - 0.499971745f;
    poly = poly * e + 0.999999781f;
    return fmaxf(z, 0.0f) + e * poly;
  }
}

// tanh(softplus(z)) = w / (w + 2) with w = e (e + 2) and e = exp(z), and its derivative,
// 4 e (1 + e) / (w + 2)^2. From z = 30 on they are 1 and nothing; NaN stays.
template <class T>
struct MishFactor {
  T value, slope;
};
template <Accuracy kAccuracy, class T>
__device__ __forceinline__ MishFactor<T> mish_factor(T z) {
  const T e = exp_as<kAccuracy>(z > T(30) ? T(30) : z);
  const T w = e * (e + T(2));
  T r;
  if constexpr (kAccuracy == Accuracy::kFloat32) {
    r = T(1) / (w + T(2));
  } else {
    r = rcp_approx(w + 2.0f);
  }
  return {w * r, T(4) * e * (T(1) + e) * r * r};
}

inline constexpr double kQuickGeluScale = 1.702, kLeakyReluSlope = 0.01;

// ---- act(z) ----

// Whether bf16 results come from z / 2: an epilogue then gets the factor with the bias, for free.
template <Activation kActivation, Accuracy kAccuracy>
inline constexpr bool kFromHalf =
    kAccuracy == Accuracy::kBFloat16 &&
    (kActivation == Activation::kGeluTanh || kActivation == Activation::kSilu);

template <Activation kActivation>
__device__ __forceinline__ float activate_half(float half) {
  if constexpr (kActivation == Activation::kGeluTanh) {
    constexpr float kLinear = float(2 * kSqrt2OverPi), kCubic = float(8 * kSqrt2OverPi * 0.044715);
    return half * tanh_approx(half * (kLinear + kCubic * (half * half))) + half;
  } else {
    return half * tanh_approx(half) + half;
  }
}

template <Activation kActivation, Accuracy kAccuracy, class T>
__device__ __forceinline__ T activate_as(T z) {
  constexpr bool kExact = kAccuracy == Accuracy::kFloat32;
  if constexpr (kFromHalf<kActivation, kAccuracy>) {
    return activate_half<kActivation>(0.5f * z);
  } else if constexpr (kActivation == Activation::kRelu) {
    return relu(z);
  } else if constexpr (kActivation == Activation::kGelu && kExact) {
    return T(0.5) * z * (T(1) + standard_erf(z * T(0.7071067811865476)));
  } else if constexpr (kActivation == Activation::kGelu) {
    const float tail = normal_tail(z).tail;
    return z * (z >= 0.0f ? 1.0f - tail : tail);
  } else if constexpr (kActivation == Activation::kGeluTanh && kExact) {
    return over_one_plus_exp<kAccuracy>(z, gelu_tanh_u(z, 2.0));
  } else if constexpr (kActivation == Activation::kGeluTanh && kAccuracy == Accuracy::kFloat16) {
    return z * rcp_approx(1.0f + ex2_approx(gelu_tanh_u(z, -2.0 * 1.4426950408889634)));
  } else if constexpr (kActivation == Activation::kSilu) {
    return over_one_plus_exp<kAccuracy>(z, z);
  } else if constexpr (kActivation == Activation::kSigmoid) {
    return over_one_plus_exp<kAccuracy>(T(1), z);
  } else if constexpr (kActivation == Activation::kTanh && kExact) {
    return standard_tanh(z);
  } else if constexpr (kActivation == Activation::kTanh) {
    return kAccuracy == Accuracy::kFloat16 ? tanh_half(z) : tanh_approx(z);
  } else if constexpr (kActivation == Activation::kRelu2) {
    const T r = relu(z);
    return r * r;
  } else if constexpr (kActivation == Activation::kQuickGelu) {
    return over_one_plus_exp<kAccuracy>(z, T(kQuickGeluScale) * z);
  } else if constexpr (kActivation == Activation::kLeakyRelu) {
    return z > T(0) ? z : T(kLeakyReluSlope) * z;
  } else if constexpr (kActivation == Activation::kHardswish) {
    return z * (T(1.0 / 6) * min(max(z + T(3), T(0)), T(6)));
  } else if constexpr (kActivation == Activation::kMish) {
    return z * mish_factor<kAccuracy>(z).value;
  } else if constexpr (kActivation == Activation::kSoftplus) {
    return softplus<kAccuracy>(z);
  } else if constexpr (kActivation == Activation::kElu) {
    return z > T(0) ? z : expm1_as<kAccuracy>(z);
  } else if constexpr (kActivation == Activation::kRelu6) {
    const T r = relu(z);
    return r > T(6) ? T(6) : r;
  } else {
    static_assert(kActivation == Activation::kNone);
    return z;
  }
}

// ---- run-time choice: one uniform switch, the loop over elements inside ----

// Calls body.template operator()<kActivation>() for the run-time code of a rare activation.
template <class Body>
__device__ __forceinline__ void with_rare_activation(Activation activation, Body&& body) {
  switch (activation) {
    case Activation::kQuickGelu: return body.template operator()<Activation::kQuickGelu>();
    case Activation::kLeakyRelu: return body.template operator()<Activation::kLeakyRelu>();
    case Activation::kHardswish: return body.template operator()<Activation::kHardswish>();
    case Activation::kMish: return body.template operator()<Activation::kMish>();
    case Activation::kSoftplus: return body.template operator()<Activation::kSoftplus>();
    case Activation::kElu: return body.template operator()<Activation::kElu>();
    default: return body.template operator()<Activation::kRelu6>();
  }
}

// For the innermost loop of an instance: calls body for its activation, which for kAnyRare is the
// run-time code's.
template <Activation kActivation, class Body>
__device__ __forceinline__ void resolve_rare(Activation activation, Body&& body) {
  if constexpr (kActivation == kAnyRare) {
    with_rare_activation(activation, body);
  } else {
    body.template operator()<kActivation>();
  }
}

// Calls body.template operator()<kActivation>() for the run-time code, with kAnyRare for all rare
// ones.
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
    default: return body.template operator()<kAnyRare>();
  }
}

// Array: anything with kElements and operator[] over float or double (cutlass::Array).
template <Accuracy kAccuracy, class Array>
__device__ __forceinline__ void activate_array(Activation activation, Array& z) {
  with_activation(activation, [&]<Activation kActivation>() {
    resolve_rare<kActivation>(activation, [&]<Activation kNow>() {
#pragma unroll
      for (int i = 0; i < int(Array::kElements); ++i) {
        z[i] = activate_as<kNow, kAccuracy>(z[i]);
      }
    });
  });
}

}  // namespace fusedops
