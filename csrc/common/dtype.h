// The floating-point dtypes that kernels compute with.
#pragma once

#include <cstdint>

namespace fusedops {

enum class DType : int8_t { kFloat16, kBFloat16, kFloat32, kFloat64 };
inline constexpr int kNumDTypes = 4;

constexpr int64_t dtype_bytes(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

}  // namespace fusedops
