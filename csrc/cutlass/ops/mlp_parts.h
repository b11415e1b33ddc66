// What mlp and gated_mlp share: the product with the residual, and the elementwise kernels on
// views.
#pragma once

#include <initializer_list>

#include "csrc/common/checks/mlp_check.h"
#include "csrc/cutlass/ops/linear_parts.h"
#include "csrc/cutlass/passes/gated_act.h"

namespace fusedops {

// y = h @ weight.T + bias + residual; `like` gives dtype, precision and the op's name.
Tensor run_down(const GemmCall& like, const Tensor& h, const Tensor& weight,
                const std::optional<Tensor>& bias, const std::optional<Tensor>& residual,
                const Tensor& y, const LaunchScope& scope);

// h = act(gate) * up, or act(gate) without up; both with contiguous elements in each row.
void run_gated_act(const char* op, const MlpShape& shape, const MatrixView& gate,
                   const MatrixView* up, const Tensor& h, const LaunchScope& scope);

// An empty gradient of a parameter, or shape (0,) where it is not needed.
Tensor parameter_gradient(const Tensor& like, bool needed, std::initializer_list<int64_t> sizes,
                          bool fp32);

}  // namespace fusedops
