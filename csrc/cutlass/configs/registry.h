// The table in which instances/*.cu announce their kernels at load time and the launcher finds
// them. Host only.
#pragma once

#include "csrc/cutlass/configs/config.h"

namespace fusedops {

inline constexpr int kMaxConfigs = 64;  // per family

// Returns true so that a namespace-scope constant can hold the call.
bool register_kernel(const KernelKey& key, GemmRunFn run);

// Null where this build has no such kernel.
GemmRunFn find_kernel(const KernelKey& key);

int num_registered_kernels();

}  // namespace fusedops
