// From run-time values to compile-time ones: the only place in the project where that happens.
//
// Problem: a kernel wants its dtype and options as template arguments; the call site has integers.
// A hand-written switch per call site is where copy-paste bugs live.
// Usage: the lambda gets one tag per value and reads the constant from the tag's type.
//
//   dispatch(Choices<DType::kFloat16, DType::kFloat32>{}, dtype, [&]<DType D>(Tag<D>) {
//     scale_kernel<DeviceType<D>><<<grid, block, 0, stream>>>(...);
//   });
//
// Every branch must return the same type. A value outside the choices is an error.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "csrc/common/activation.h"
#include "csrc/common/dtype.h"

namespace fusedops {

template <auto Value>
struct Tag {
  static constexpr auto value = Value;
};

template <auto First, auto... Rest>
struct Choices {};

using FloatingDTypes = Choices<DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64>;
using Activations = Choices<Activation::kNone, Activation::kRelu, Activation::kGelu,
                            Activation::kGeluTanh, Activation::kSilu, Activation::kSigmoid,
                            Activation::kTanh, Activation::kRelu2, kAnyRare>;
using Booleans = Choices<false, true>;

template <auto First, auto... Rest, typename Fn>
decltype(auto) dispatch(Choices<First, Rest...>, decltype(First) value, Fn&& fn) {
  if (value == First) return fn(Tag<First>{});
  if constexpr (sizeof...(Rest) > 0) {
    return dispatch(Choices<Rest...>{}, value, fn);
  } else {
    throw std::logic_error("dispatch: a value that the checks let through has no instance");
  }
}

template <typename Fn>
decltype(auto) dispatch_dtype(DType dtype, Fn&& fn) {
  return dispatch(FloatingDTypes{}, dtype, fn);
}

template <typename Fn>
decltype(auto) dispatch_activation(Activation activation, Fn&& fn) {
  return dispatch(Activations{}, is_rare(activation) ? kAnyRare : activation, fn);
}

template <typename Fn>
decltype(auto) dispatch_bool(bool value, Fn&& fn) {
  return dispatch(Booleans{}, value, fn);
}

}  // namespace fusedops
