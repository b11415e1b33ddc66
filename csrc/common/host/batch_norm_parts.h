// Batch norm in training, for every device: the ops of its passes, one behind the other.
#pragma once

#include <tuple>

#include "csrc/common/checks/batch_norm_check.h"

namespace fusedops {

// batch_norm_train_; kStatistics and kApply: batch_norm_statistics_ and batch_norm_apply of a
// device.
template <auto kStatistics, auto kApply>
std::tuple<Tensor, Tensor, Tensor> batch_norm_train(
    const Tensor& x_,                           // (..., C)
    const std::optional<Tensor>& moments,       // (2, C, blocks)
    const std::optional<Tensor>& weight,        // (C,)
    const std::optional<Tensor>& bias,          // (C,)
    const std::optional<Tensor>& residual,      // (..., C)
    const std::optional<Tensor>& shift,         // (C,)
    const std::optional<Tensor>& running_mean,  // (C,), written
    const std::optional<Tensor>& running_var,   // (C,), written
    double momentum, double eps, int64_t activation) {
  constexpr const char* kOp = "batch_norm_train_";
  check_batch_norm_statistics(kOp, x_, moments, shift, running_mean, running_var);
  const std::optional<Tensor> none;
  check_batch_norm_apply(kOp, x_, {none, none, weight, bias}, residual, activation);
  const Tensor x = dense(x_);  // once for both
  const auto [mean, var] = kStatistics(x, moments, shift, running_mean, running_var, momentum);
  return {kApply(x, mean, var, weight, bias, residual, eps, activation), mean, var};
}

// batch_norm_train_backward; kSums and kBackward: batch_norm_sums and batch_norm_backward of a
// device.
template <auto kSums, auto kBackward>
std::tuple<Tensor, Tensor, Tensor> batch_norm_train_backward(
    const Tensor& dy_,                    // (..., C)
    const Tensor& x_,                     // (..., C)
    const Tensor& mean_,                  // (C,)
    const Tensor& var_,                   // (C,)
    const std::optional<Tensor>& weight,  // (C,)
    const std::optional<Tensor>& bias,    // (C,)
    const std::optional<Tensor>& saved,   // (..., C)
    double eps, int64_t activation, bool need_dz) {
  const std::optional<Tensor> mean = mean_, var = var_, none;
  const NormVectors norm{mean, var, weight, bias};
  check_batch_norm_backward("batch_norm_train_backward", dy_, x_, norm, saved, activation);
  const Tensor dy = dense(dy_), x = dense(x_);
  const auto [sums, dz] = kSums(dy, x, mean, var, weight, bias, saved, eps, activation, need_dz);
  const auto [dx, unused] =
      need_dz
          ? kBackward(dz, x, mean, var, weight, bias, none, sums, none, eps, 0, false)
          : kBackward(dy, x, mean, var, weight, bias, saved, sums, none, eps, activation, false);
  return {dx, dz, sums};
}

}  // namespace fusedops
