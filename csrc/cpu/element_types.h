// What an Element is on the host.
#pragma once

#include "csrc/common/checks/tensor_check.h"
#include "csrc/common/element.h"
#include "csrc/cpu/host_types.h"

namespace fusedops::cpu {

template <Element E>
constexpr auto host_element() {
  if constexpr (is_floating(E)) {
    return std::type_identity<Storage<dtype_of(E)>>{};
  } else {
    return std::type_identity<IntegerType<E>>{};
  }
}
template <Element E>
using HostElement = typename decltype(host_element<E>())::type;

template <class T>
const T* typed(const Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}
template <class T>
T* mutable_typed(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

}  // namespace fusedops::cpu
