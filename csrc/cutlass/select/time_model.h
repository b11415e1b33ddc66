// How long each family's kernels take for a product, in us: what select.cpp ranks by. Host only.
//
// Fitted to the ranking within perf/results/h200/gemm_sweep.csv (products of models, forward and
// gradients) and gemm_sweep_large.csv (266 random ones of 2048 rows and more, 112 of gradients; one
// H200, bf16): the kernel that the model alone chooses costs 1.3 to 2.1 % more than the best
// one, 4 % where a weight has fewer than 2048 rows. Cycles are of a nominal clock.
#pragma once

#include "csrc/cutlass/configs/cluster_configs.h"
#include "csrc/cutlass/configs/plan.h"
#include "csrc/cutlass/configs/stream_k_tail.h"

namespace fusedops {

inline constexpr double kClockGhz = 1.60;
inline constexpr double kMmaPerCycle = 1988;  // 16-bit multiply-adds per SM
inline constexpr double kDramBytesPerUs = 4.2e6;

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
StreamKTail tail_of(const GemmProblem& p, const TileCount& tiles);

// plan: of which the split of K counts.
double sm90_us(const GemmProblem& p, const GemmConfig& c, const GemmPlan& plan,
               const DeviceModel& device);
double sm80_us(const GemmProblem& p, const GemmConfig& c, int splits, const DeviceModel& device);
double skinny_us(const GemmProblem& p, const GemmConfig& c, const DeviceModel& device);
// tiles: with those that fill the last clusters.
double cluster_us(const GemmProblem& p, const GemmConfig& c, const TileCluster& cluster,
                  double tiles, const DeviceModel& device);

}  // namespace fusedops
