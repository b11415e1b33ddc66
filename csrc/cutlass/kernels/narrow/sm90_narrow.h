// Host face of sm90_narrow.cuh: every gradient of a linear layer of few features in one pass over
// its rows.
#pragma once

#include "csrc/common/launch_context.h"
#include "csrc/cutlass/configs/narrow_problem.h"

namespace fusedops::narrow {

// Launches; returns null or the reason of the failure.
using RunFn = const char* (*)(const Backward&, const LaunchContext&);

// What sm90_narrow.cu registers; null where this build has no code for sm_90a.
RunFn find_kernels();
bool register_kernels(RunFn run);

}  // namespace fusedops::narrow
