// What a launch asks about a plan of the sm90 family. Host only.
#pragma once

#include "csrc/cutlass/configs/plan.h"

namespace fusedops {

// Whether CTAs take tiles as they get to them (sm90_dynamic_scheduler.cuh): where memory is what a
// product waits for.
bool wants_dynamic_schedule(const GemmProblem& problem, const GemmPlan& plan,
                            const DeviceModel& device);

// kGrad: rows of partial column sums, one for each warpgroup's rows of a tile.
int64_t column_sum_rows(const GemmPlan& plan, int64_t m);

}  // namespace fusedops
