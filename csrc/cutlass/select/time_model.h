// How long each family's kernels take for a product, in us: what select.cpp ranks by. Host only.
//
// The constants are in time_constants.h, which perf/gemm/fit_time_model.py writes: it fits them to
// the committed sweeps (one H200, bf16), and states there how much the model's choices lose. They
// lose most, 4 %, where a weight has fewer than 2048 rows. Cycles are of a nominal clock.
#pragma once

#include "csrc/cutlass/configs/cluster_configs.h"
#include "csrc/cutlass/configs/plan.h"
#include "csrc/cutlass/configs/tile_sharing.h"
#include "csrc/cutlass/select/time_constants.h"

namespace fusedops {

// Whether an epilogue takes its time for it, as it does not for relu.
bool is_costly(Activation activation);

// Of what an epilogue reads and writes. kGrad: saved, d and, where act(saved) takes time, that.
int output_bytes(const GemmProblem& p);

// Operands and outputs, once.
double dram_bytes(const GemmProblem& p);

struct TileCount {
  int64_t all, slots;  // clusters of tiles, and of CTAs that run at a time
  int64_t last_wave() const { return all % slots; }
};
TileCount count_tiles(const GemmProblem& p, const GemmConfig& c, const DeviceModel& device);

// Of the last wave of these tiles.
TileSharing sharing_of(const GemmProblem& p, const TileCount& tiles);

// splits: those of GemmPlan.
double sm90_us(const GemmProblem& p, const GemmConfig& c, int splits, const DeviceModel& device);
double sm80_us(const GemmProblem& p, const GemmConfig& c, int splits, const DeviceModel& device);
double skinny_us(const GemmProblem& p, const GemmConfig& c, const DeviceModel& device);
// tiles: with those that fill the last clusters.
double cluster_us(const GemmProblem& p, const GemmConfig& c, const TileCluster& cluster,
                  double tiles, const DeviceModel& device);

}  // namespace fusedops
