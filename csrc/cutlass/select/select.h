// Which kernel serves a product: the candidates of all families, ranked by their times. Host only.
#pragma once

#include <vector>

#include "csrc/cutlass/configs/plan.h"

namespace fusedops {

// Every (config, split of K, shared tiles) considered, family by family in the order of its table:
// what explain and the tests read.
std::vector<Candidate> enumerate_candidates(const GemmProblem& problem, const DeviceModel& device);

// The fastest by the model; config == -1 when every candidate is rejected.
GemmPlan select_gemm(const GemmProblem& problem, const DeviceModel& device);

}  // namespace fusedops
