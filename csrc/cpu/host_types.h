// What a DType is on the host: how it is stored and what it is computed in.
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include "csrc/common/dtype.h"

namespace fusedops::cpu {

template <DType>
struct HostTypes;
template <>
struct HostTypes<DType::kFloat16> {
  using Storage = c10::Half;
  using Compute = float;
};
template <>
struct HostTypes<DType::kBFloat16> {
  using Storage = c10::BFloat16;
  using Compute = float;
};
template <>
struct HostTypes<DType::kFloat32> {
  using Storage = float;
  using Compute = float;
};
template <>
struct HostTypes<DType::kFloat64> {
  using Storage = double;
  using Compute = double;
};

template <DType D>
using Storage = typename HostTypes<D>::Storage;
template <DType D>
using Compute = typename HostTypes<D>::Compute;

}  // namespace fusedops::cpu
