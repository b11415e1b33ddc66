// The gradients of layer_norm and rms_norm, on checked operands: one file per kernel.
#pragma once

#include <optional>

#include "csrc/common/checks/row_check.h"
#include "csrc/common/host/launch.h"

namespace fusedops::cuda {

struct NormGradients {
  const Tensor& dy;
  const std::optional<Tensor>& dresidual;
  const Tensor& x;
  const std::optional<Tensor>& weight;  // contiguous
  const Tensor* mean;                   // null for rms_norm
  const Tensor& rstd;
  Tensor* dx;  // null: not needed
  Tensor* dweight;
  Tensor* dbias;
};

void layer_norm_gradients(const NormGradients& t, const NormShape& shape, int64_t norm_dims,
                          const LaunchScope& scope);
void rms_norm_gradients(const NormGradients& t, const NormShape& shape, int64_t norm_dims,
                        const LaunchScope& scope);

}  // namespace fusedops::cuda
