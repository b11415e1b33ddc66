// What stands behind the sums of a convolution on the CPU: bias and norm.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "csrc/common/checks/batch_norm_check.h"
#include "csrc/common/host/aten.h"

namespace fusedops::cpu {

// (sum + conv_bias - mean) / sqrt(var + eps) * weight + bias, by channels.
template <typename C>
class Behind {
 public:
  Behind(const std::optional<Tensor>& conv_bias, const NormVectors& norm, int64_t channels,
         double eps)
      : before_(values(conv_bias, channels, 0)),
        scale_(values(norm.var, channels, 1)),
        shift_(values(norm.bias, channels, C(-0.0))) {
    const std::vector<C> mean = values(norm.mean, channels, 0);
    const std::vector<C> weight = values(norm.weight, channels, 1);
    for (int64_t c = 0; c < channels; ++c) {
      before_[c] -= mean[c];
      scale_[c] = (norm.var ? C(1) / std::sqrt(scale_[c] + static_cast<C>(eps)) : C(1)) * weight[c];
    }
  }

  C operator()(double sum, int64_t channel) const {
    return (static_cast<C>(sum) + before_[channel]) * scale_[channel] + shift_[channel];
  }

 private:
  // A vector in the compute type, or one value where it is absent.
  static std::vector<C> values(const std::optional<Tensor>& vector, int64_t channels, C absent) {
    std::vector<C> result(channels, absent);
    if (!vector) return result;
    const Tensor wide =
        dense(to_dtype(*vector, sizeof(C) == 8 ? ScalarType::Double : ScalarType::Float));
    std::copy_n(static_cast<const C*>(wide.const_data_ptr()), channels, result.begin());
    return result;
  }

  std::vector<C> before_, scale_, shift_;
};

}  // namespace fusedops::cpu
