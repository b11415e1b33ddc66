// What the elements of a tensor are, and the errors of ops that do not take all of them.
#pragma once

#include <optional>

#include "csrc/common/checks/tensor_check.h"
#include "csrc/common/element.h"

namespace fusedops {

inline std::optional<Element> find_element(ScalarType type) {
  switch (type) {
    case ScalarType::Half: return Element::kFloat16;
    case ScalarType::BFloat16: return Element::kBFloat16;
    case ScalarType::Float: return Element::kFloat32;
    case ScalarType::Double: return Element::kFloat64;
    case ScalarType::Byte: return Element::kUInt8;
    case ScalarType::Char: return Element::kInt8;
    case ScalarType::Short: return Element::kInt16;
    case ScalarType::Int: return Element::kInt32;
    case ScalarType::Long: return Element::kInt64;
    case ScalarType::Bool: return Element::kBool;
    default: return std::nullopt;
  }
}

// bool counts as uint8, which is how it is stored.
inline Element check_number(const char* op, const char* name, const Tensor& tensor) {
  const std::optional<Element> element = find_element(tensor.scalar_type());
  FUSEDOPS_CHECK(element.has_value(), op, ": ", name,
                 " must be bool, an integer or a floating dtype up to 64 bits; got ",
                 dtype_name(tensor.scalar_type()));
  return *element == Element::kBool ? Element::kUInt8 : *element;
}

inline Element check_integer(const char* op, const char* name, const Tensor& tensor) {
  const std::optional<Element> element = find_element(tensor.scalar_type());
  FUSEDOPS_CHECK(element && !is_floating(*element) && *element != Element::kBool, op, ": ", name,
                 " must be uint8, int8, int16, int32 or int64; got ",
                 dtype_name(tensor.scalar_type()));
  return *element;
}

// A dimension of a tensor of `rank` dimensions, negative counted from the end; a scalar has one.
inline int64_t check_dimension(const char* op, int64_t dim, int64_t rank) {
  const int64_t count = rank > 0 ? rank : 1;
  FUSEDOPS_CHECK(dim >= -count && dim < count, op, ": dim must be from ", -count, " to ", count - 1,
                 "; got ", dim);
  return dim < 0 ? dim + count : dim;
}

}  // namespace fusedops
