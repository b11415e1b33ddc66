// Which kernel serves a product: enumerate the configs, reject with a reason, rank by a time model.
// Host only.
#pragma once

#include <vector>

#include "cutlass/config.h"

namespace fusedops {

// What the ranking may use: the device and, for tests without one, made-up figures.
struct DeviceModel {
  int capability = 90;  // 10 * major + minor
  int sm_count = 132;
};

// GemmPlan::splits: the last wave of tiles is shared out (tile_sharing.h).
inline constexpr int kSharedWave = 0;

// Who chose a plan: the time model, sm90_measured.h, the time model among the skinny kernels (which
// go before all others), or fusedops.tune.
enum class ChosenBy : int8_t { kModel, kMeasured, kSkinny, kTuned };

struct GemmPlan {
  Family family = Family::kSm80;
  int config = -1;  // index into the family's table; -1: nothing fits
  int splits = 1;   // > 1: kAccumulator slices over K, then splitk_reduce; or kSharedWave
  // Tiles that a band of output tiles is wide; of kCluster: those whose blocks share operands.
  int swizzle = 8;
  double expected_us = 0;
  ChosenBy chosen_by = ChosenBy::kModel;
};

// Whether CTAs take tiles as they get to them (sm90_tile_queue.cuh), where memory is what a product
// waits for.
bool takes_tiles(const GemmProblem& problem, const GemmPlan& plan, const DeviceModel& device);

// kGrad: rows of partial column sums, one for each warpgroup's rows of a tile.
int64_t column_sum_rows(const GemmPlan& plan, int64_t m);

struct Candidate {
  GemmPlan plan;
  const char* rejected = nullptr;  // the reason, or null when ranked
};

// Every (config, splits, tiles of a cluster) considered, in table order: what explain and the tests
// read.
std::vector<Candidate> enumerate_candidates(const GemmProblem& problem, const DeviceModel& device);

// The fastest by the model; config == -1 when every candidate is rejected.
GemmPlan select_gemm(const GemmProblem& problem, const DeviceModel& device);

// Why TMA cannot address this problem (null: it can). The sm_80 family serves what this refuses.
const char* tma_refusal(const GemmProblem& problem);

}  // namespace fusedops
