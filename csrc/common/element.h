// Element types of ops that take integers as well as floating point.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/dispatch.h"
#include "common/tensor_check.h"

namespace fusedops {

enum class NumberType : int8_t {
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kUInt8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
};

using FloatingElements = Choices<NumberType::kFloat16, NumberType::kBFloat16, NumberType::kFloat32,
                                 NumberType::kFloat64>;
using IntegerElements = Choices<NumberType::kUInt8, NumberType::kInt8, NumberType::kInt16,
                                NumberType::kInt32, NumberType::kInt64>;
using AllElements = Choices<NumberType::kFloat16, NumberType::kBFloat16, NumberType::kFloat32,
                            NumberType::kFloat64, NumberType::kUInt8, NumberType::kInt8,
                            NumberType::kInt16, NumberType::kInt32, NumberType::kInt64>;

// what an integer NumberType is, on the host and on the device.
template <NumberType E>
using IntegerType = std::conditional_t<
    E == NumberType::kUInt8, uint8_t,
    std::conditional_t<
        E == NumberType::kInt8, int8_t,
        std::conditional_t<E == NumberType::kInt16, int16_t,
                           std::conditional_t<E == NumberType::kInt32, int32_t, int64_t>>>>;

constexpr bool is_floating(NumberType element) { return element <= NumberType::kFloat64; }

constexpr DType dtype_of(NumberType floating) { return static_cast<DType>(floating); }

// bool counts as uint8, which is how it is stored.
inline NumberType check_element(const char* op, const char* name, const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Half: return NumberType::kFloat16;
    case ScalarType::BFloat16: return NumberType::kBFloat16;
    case ScalarType::Float: return NumberType::kFloat32;
    case ScalarType::Double: return NumberType::kFloat64;
    case ScalarType::Bool:
    case ScalarType::Byte: return NumberType::kUInt8;
    case ScalarType::Char: return NumberType::kInt8;
    case ScalarType::Short: return NumberType::kInt16;
    case ScalarType::Int: return NumberType::kInt32;
    case ScalarType::Long: return NumberType::kInt64;
    default:
      fail(op, ": ", name, " must be bool, an integer or a floating dtype up to 64 bits; got ",
           dtype_name(tensor.scalar_type()));
  }
}

inline NumberType check_integer(const char* op, const char* name, const Tensor& tensor) {
  const bool integer = tensor.scalar_type() != ScalarType::Bool &&
                       tensor.scalar_type() != ScalarType::ComplexFloat &&
                       tensor.scalar_type() != ScalarType::ComplexDouble &&
                       !is_floating(check_element(op, name, tensor));
  FUSEDOPS_CHECK(integer, op, ": ", name, " must be uint8, int8, int16, int32 or int64; got ",
                 dtype_name(tensor.scalar_type()));
  return check_element(op, name, tensor);
}

// A dimension of a tensor of `rank` dimensions, negative counted from the end; a scalar has one.
inline int64_t check_dimension(const char* op, int64_t dim, int64_t rank) {
  const int64_t count = rank > 0 ? rank : 1;
  FUSEDOPS_CHECK(dim >= -count && dim < count, op, ": dim must be from ", -count, " to ", count - 1,
                 "; got ", dim);
  return dim < 0 ? dim + count : dim;
}

}  // namespace fusedops
