// Host side of the stencil's forward and input gradient on CUDA.
#pragma once

#include <torch/csrc/stable/ops.h>

#include "csrc/common/checks/stencil_check.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/host/launch.h"

namespace fusedops::cuda {

// Rows of all tensors start at multiples of four elements.
template <class... Tensors>
bool rows_allow_vectors(const StencilShape& s, const Tensors&... tensors) {
  const auto aligned = [](const Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % (4 * t.element_size()) == 0;
  };
  return s.w % 4 == 0 && (aligned(tensors) && ...);
}

// y = stencil(x), or its adjoint; all contiguous. Launches.
void launch_stencil_forward(const LaunchScope& scope, DType dtype, const StencilShape& shape,
                            const Tensor& x, const Tensor& weight, const Tensor& y, double scale,
                            bool adjoint);

}  // namespace fusedops::cuda
