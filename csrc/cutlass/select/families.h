// What each family of kernels answers about a product: its candidates, why one cannot run, and what
// it costs. select.cpp asks all of them and ranks. Host only.
//
// What kernels check for themselves as well (sm80_refusal, cluster_refusal, skinny_refusal) stands
// with their tables, in configs/.
#pragma once

#include <vector>

#include "csrc/cutlass/configs/plan.h"

namespace fusedops {

using Candidates = std::vector<Candidate>;

inline constexpr const char* kNotHopper = "not a Hopper GPU";

// Each of these appends the candidates of its family, in the order of its table.
void add_sm90(const GemmProblem& problem, const DeviceModel& device, Candidates& candidates);
void add_sm80(const GemmProblem& problem, const DeviceModel& device, Candidates& candidates);
void add_cluster(const GemmProblem& problem, const DeviceModel& device, Candidates& candidates);
void add_skinny(const GemmProblem& problem, const DeviceModel& device, Candidates& candidates);

// Clusters of 1, 2, 4 or 8 blocks that run at a time, a block an SM: a GPC has SMs that are left
// over for 4 and 8.
constexpr int64_t cluster_slots(int blocks, const DeviceModel& device) {
  return blocks < 4 ? device.sm_count / blocks : device.sm_count * 10 / (11 * blocks);
}

// What a product over fp32 parts takes in a tile of unaligned::kPartTiles and so many slices of K,
// with the operands of `problem`.
double parts_us(const GemmProblem& problem, int tile, int slices, const DeviceModel& device);

// Why TMA cannot address this problem (null: it can). The sm_80 family serves what this refuses.
const char* tma_refusal(const GemmProblem& problem);

// The same of the sm90 kernels, some of which also take rows that end within 16 bytes.
const char* sm90_refusal(const GemmProblem& problem);

}  // namespace fusedops
