// What an element of a tensor is, for ops that take integers as well as floating point. No torch,
// no CUDA.
#pragma once

#include <cstdint>
#include <type_traits>

#include "csrc/common/dispatch.h"

namespace fusedops {

// NOTE: the floating ones as DType (dtype.h) numbers them.
enum class Element : int8_t {
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kUInt8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kBool,
};

using FloatingElements =
    Choices<Element::kFloat16, Element::kBFloat16, Element::kFloat32, Element::kFloat64>;
using IntegerElements =
    Choices<Element::kUInt8, Element::kInt8, Element::kInt16, Element::kInt32, Element::kInt64>;
using NumberElements =
    Choices<Element::kFloat16, Element::kBFloat16, Element::kFloat32, Element::kFloat64,
            Element::kUInt8, Element::kInt8, Element::kInt16, Element::kInt32, Element::kInt64>;

// What an integer element is, on the host and on the device.
template <Element E>
using IntegerType = std::conditional_t<
    E == Element::kUInt8, uint8_t,
    std::conditional_t<
        E == Element::kInt8, int8_t,
        std::conditional_t<E == Element::kInt16, int16_t,
                           std::conditional_t<E == Element::kInt32, int32_t, int64_t>>>>;

constexpr bool is_floating(Element e) { return e <= Element::kFloat64; }

constexpr DType dtype_of(Element floating) { return static_cast<DType>(floating); }

constexpr int element_bytes(Element e) {
  switch (e) {
    case Element::kUInt8:
    case Element::kInt8:
    case Element::kBool: return 1;
    case Element::kFloat16:
    case Element::kBFloat16:
    case Element::kInt16: return 2;
    case Element::kFloat64:
    case Element::kInt64: return 8;
    default: return 4;
  }
}

}  // namespace fusedops
