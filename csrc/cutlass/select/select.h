// Which kernel serves a product: enumerate the configs, reject with a reason, rank by a time model.
// Host only.
#pragma once

#include <vector>

#include "csrc/cutlass/configs/plan.h"

namespace fusedops {

// Whether CTAs take tiles as they get to them (sm90_dynamic_scheduler.cuh): where memory is what a
// product waits for.
bool wants_dynamic_schedule(const GemmProblem& problem, const GemmPlan& plan,
                            const DeviceModel& device);

// kGrad: rows of partial column sums, one for each warpgroup's rows of a tile.
int64_t column_sum_rows(const GemmPlan& plan, int64_t m);

// Every (config, split of K, shared tiles) considered, in table order: what explain and the tests
// read.
std::vector<Candidate> enumerate_candidates(const GemmProblem& problem, const DeviceModel& device);

// The fastest by the model; config == -1 when every candidate is rejected.
GemmPlan select_gemm(const GemmProblem& problem, const DeviceModel& device);

// Why TMA cannot address this problem (null: it can). The sm_80 family serves what this refuses.
const char* tma_refusal(const GemmProblem& problem);

}  // namespace fusedops
