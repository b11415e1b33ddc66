// What an Element is on the device.
#pragma once

#include "csrc/common/device/device_types.cuh"
#include "csrc/common/element.h"

namespace fusedops {

template <Element E>
constexpr auto element_tag() {
  if constexpr (is_floating(E)) {
    return std::type_identity<DeviceType<dtype_of(E)>>{};
  } else {
    return std::type_identity<IntegerType<E>>{};
  }
}
template <Element E>
using ElementType = typename decltype(element_tag<E>())::type;

}  // namespace fusedops
