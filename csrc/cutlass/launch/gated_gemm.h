// Launches the kernels of gated_configs.h.
#pragma once

#include <optional>

#include "csrc/common/host/launch.h"
#include "csrc/cutlass/configs/gated_configs.h"
#include "csrc/cutlass/select/operands.h"

namespace fusedops {

struct GatedOperands {
  MatrixView a, b;                   // (m, k), (k, n)
  std::optional<MatrixView> a2, b2;  // the same for the second product, where it has its own
};

// False where no kernel takes the problem, which holds all but its operands: nothing was launched.
bool run_gated_gemm(const char* op, GatedProduct product, GatedGemm problem,
                    const GatedOperands& operands, const LaunchScope& scope);

}  // namespace fusedops
