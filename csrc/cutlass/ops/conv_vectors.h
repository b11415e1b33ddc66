// A norm's vectors for the kernels of convolutions.
#pragma once

#include "csrc/common/checks/batch_norm_check.h"
#include "csrc/common/host/aten.h"
#include "csrc/cutlass/column_norm.h"

namespace fusedops {

// The vectors, contiguous, for as long as a launch needs them.
struct ConvVectors {
  std::optional<Tensor> conv_bias, mean, var, weight, bias;

  ConvVectors(const std::optional<Tensor>& of_conv, const NormVectors& norm)
      : conv_bias(dense(of_conv)),
        mean(dense(norm.mean)),
        var(dense(norm.var)),
        weight(dense(norm.weight)),
        bias(dense(norm.bias)) {}

  ColumnNorm norm(double eps) const {
    return {of(conv_bias), of(mean), of(var), of(weight), of(bias), static_cast<float>(eps)};
  }

 private:
  static NormVector of(const std::optional<Tensor>& vector) {
    if (!vector) return {};
    return {vector->const_data_ptr(), vector->scalar_type() == ScalarType::Float};
  }
};

}  // namespace fusedops
