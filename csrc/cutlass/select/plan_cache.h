// Remembers the plan of recent problems, so that a training loop does not rank configs on every
// call. Per thread: no locks. Host only.
#pragma once

#include "csrc/cutlass/select/select.h"

namespace fusedops {

// choose_gemm (tuned_plans.h), answered from a small direct-mapped cache when this thread has seen
// the problem before.
GemmPlan select_gemm_cached(const GemmProblem& problem, const DeviceModel& device);

}  // namespace fusedops
