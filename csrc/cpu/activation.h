// Activations and their derivatives on the CPU, by ATen's vectorised kernels where it has one.
#pragma once

#include <optional>

#include "csrc/common/checks/linear_check.h"

namespace fusedops::cpu {

// z = x @ weight.T + bias as `activate` wants it: in fp32 for 16-bit operands, so that the result
// is rounded once, after its activation; in their dtype where act(round(z)) is round(act(z))
// anyway.
Tensor preactivation(const Tensor& x,                    // (M, K)
                     const Tensor& weight,               // (N, K)
                     const std::optional<Tensor>& bias,  // (N,)
                     Activation activation);

// z = act(z), in place, for a z that preactivation made, or any other in fp32 or fp64.
void activate(const Tensor& z, Activation activation);  // contiguous

// act(z), a new tensor.
Tensor activated(const Tensor& z, Activation activation);  // contiguous

// dy * act'(saved) in fp32 (fp64), a new contiguous tensor; dy itself for Activation::kNone.
Tensor activation_backward(const Tensor& dy,                    // (..., N)
                           const std::optional<Tensor>& saved,  // (..., N)
                           Activation activation);

}  // namespace fusedops::cpu
