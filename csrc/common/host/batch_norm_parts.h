// Batch norm in training of its passes: for the CPU, and for shapes that no single kernel takes.
#pragma once

#include <tuple>

#include "csrc/common/checks/batch_norm_check.h"

namespace fusedops {

// (y, mean, var); kStatistics and kApply: batch_norm_statistics_ and batch_norm_apply of a device.
template <auto kStatistics, auto kApply>
std::tuple<Tensor, Tensor, Tensor> batch_norm_train_by_passes(
    const Tensor& x, const NormVectors& affine, const std::optional<Tensor>& residual,
    const std::optional<Tensor>& shift, const std::optional<Tensor>& running_mean,
    const std::optional<Tensor>& running_var, double momentum, double eps, int64_t activation) {
  const auto [mean, var] = kStatistics(x, shift, running_mean, running_var, momentum);
  return {kApply(x, mean, var, affine.weight, affine.bias, residual, eps, activation), mean, var};
}

// (dx, dz, sums); kSums and kBackward: batch_norm_sums and batch_norm_backward of a device.
template <auto kSums, auto kBackward>
std::tuple<Tensor, Tensor, Tensor> batch_norm_train_backward_by_passes(
    const Tensor& dy, const Tensor& x, const NormVectors& norm, const std::optional<Tensor>& saved,
    double eps, int64_t activation, bool need_dz) {
  const auto [sums, dz] =
      kSums(dy, x, norm.mean, norm.var, norm.weight, norm.bias, saved, eps, activation, need_dz);
  const auto [dx, unused] = kBackward(need_dz ? dz : dy, x, norm.mean, norm.var, norm.weight,
                                      norm.bias, need_dz ? std::nullopt : saved, sums, std::nullopt,
                                      eps, need_dz ? 0 : activation, false);
  return {dx, dz, sums};
}

}  // namespace fusedops
