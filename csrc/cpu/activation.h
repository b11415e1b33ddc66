// Activations and their derivatives on the CPU, by ATen's vectorised kernels where it has one.
#pragma once

#include <optional>

#include "common/linear_check.h"

namespace fusedops::cpu {

// z = act(z), in place.
void activate(const Tensor& z, const LinearShape& shape);  // contiguous

// dy * act'(saved), a new contiguous tensor; dy itself for Activation::kNone.
Tensor activation_backward(const Tensor& dy,                    // (..., N)
                           const std::optional<Tensor>& saved,  // (..., N)
                           const LinearShape& shape);

}  // namespace fusedops::cpu
