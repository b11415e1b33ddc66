// What a batch norm makes of the sums of a column.
#pragma once

#include "csrc/cutlass/column_norm.h"

namespace fusedops {

template <class T>
__device__ __forceinline__ float value_of(const NormVector& vector, int i, float absent) {
  if (vector.data == nullptr) return absent;
  if (vector.wide) return static_cast<const float*>(vector.data)[i];
  return static_cast<float>(static_cast<const T*>(vector.data)[i]);
}

// (sum - mean) * scale + bias
struct NormOfColumn {
  float mean, scale, bias;
  __device__ __forceinline__ float2 scale_and_shift() const { return {scale, bias - mean * scale}; }
};

template <class T>
__device__ __forceinline__ NormOfColumn norm_of_column(const ColumnNorm& norm, int i) {
  const float rstd =
      norm.var.data == nullptr ? 1.0f : 1.0f / sqrtf(value_of<T>(norm.var, i, 0) + norm.eps);
  return {value_of<T>(norm.mean, i, 0) - value_of<T>(norm.conv_bias, i, 0),
          value_of<T>(norm.scale, i, 1) * rstd,
          value_of<T>(norm.bias, i, -0.0f)};  // keeps zeros of both signs
}

}  // namespace fusedops
