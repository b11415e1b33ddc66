// What a launch asks about a plan of the sm90 family. Host only.
#pragma once

#include "csrc/cutlass/configs/plan.h"

namespace fusedops {

// Whether CTAs take tiles as they get to them (sm90_dynamic_scheduler.cuh): where memory is what a
// product waits for.
bool wants_dynamic_schedule(const GemmProblem& problem, const GemmPlan& plan,
                            const DeviceModel& device);

// kGrad and kMoments: rows of A that a warpgroup has of a tile, and sums its columns over.
int64_t summed_rows(const GemmPlan& plan);

}  // namespace fusedops
