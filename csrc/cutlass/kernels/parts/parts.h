// Host face of the fp32 GEMM over parts (sm90_parts.cuh).
#pragma once

#include "csrc/common/launch_context.h"
#include "csrc/cutlass/configs/unaligned_configs.h"

namespace fusedops::parts {

// Launches the kernel of unaligned::kPartTiles[tile]; operands have a unit stride and are aligned
// to an element. Returns null or the reason why nothing was launched.
const char* multiply(int tile, const GemmProblem& problem, const LaunchContext& context);

// What sm90_parts.cu registers.
using RunFn = const char* (*)(int tile, const GemmProblem&, const LaunchContext&);
bool register_kernels(RunFn run);

}  // namespace fusedops::parts
