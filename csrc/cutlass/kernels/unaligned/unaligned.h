// Host face of the kernels for operands that begin anywhere.
#pragma once

#include "csrc/common/launch_context.h"
#include "csrc/cutlass/configs/unaligned_configs.h"

namespace fusedops::unaligned {

// Launches the 16-bit kernel of tile_of(problem.dtype, tile); operands have a unit stride and are
// aligned to an element. Returns null or the reason why nothing was launched.
const char* multiply(int tile, const GemmProblem& problem, const LaunchContext& context);

// What sm90_unaligned.cu registers: the kernels of kHopperTiles.
using RunFn = const char* (*)(int tile, const GemmProblem&, const LaunchContext&);
bool register_hopper(RunFn run);

const char* multiply_fp16(int tile, const GemmProblem& problem, const LaunchContext& context);
const char* multiply_bf16(int tile, const GemmProblem& problem, const LaunchContext& context);

}  // namespace fusedops::unaligned
