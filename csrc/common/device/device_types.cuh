// What a DType is on the device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "csrc/common/dtype.h"

namespace fusedops {

template <DType>
struct DeviceTypes;
template <>
struct DeviceTypes<DType::kFloat16> {
  using type = __half;
};
template <>
struct DeviceTypes<DType::kBFloat16> {
  using type = __nv_bfloat16;
};
template <>
struct DeviceTypes<DType::kFloat32> {
  using type = float;
};
template <>
struct DeviceTypes<DType::kFloat64> {
  using type = double;
};

template <DType D>
using DeviceType = typename DeviceTypes<D>::type;

}  // namespace fusedops
