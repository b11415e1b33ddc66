// A norm's vectors for the kernels of convolutions.
#pragma once

#include "csrc/common/checks/batch_norm_check.h"
#include "csrc/common/host/aten.h"
#include "csrc/cutlass/kernels/conv/norm_vector.h"

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

  // Sets those of a Call.
  template <class Call>
  void give(Call& call) const {
    call.conv_bias = of(conv_bias), call.mean = of(mean), call.var = of(var);
    call.scale = of(weight), call.bias = of(bias);
  }

  static std::optional<Tensor> dense(const std::optional<Tensor>& tensor) {
    return tensor ? std::optional<Tensor>(cpu::dense(*tensor)) : std::nullopt;
  }

 private:
  static NormVector of(const std::optional<Tensor>& vector) {
    if (!vector) return {};
    return {vector->const_data_ptr(), vector->scalar_type() == ScalarType::Float};
  }
};

}  // namespace fusedops
