// The kernels for few rows of A.
#include <algorithm>
#include <cmath>

#include "csrc/common/int_math.h"
#include "csrc/cutlass/configs/skinny_configs.h"
#include "csrc/cutlass/select/families.h"
#include "csrc/cutlass/select/time_model.h"

namespace fusedops {
namespace {

// The kernels for few rows, fitted to skinny_sweep.csv. Reading b from DRAM bounds them, or the
// bytes that a block keeps in flight, or its WGMMAs; then come the sums of a pair and the epilogue.
double skinny_us(const GemmProblem& p, const GemmConfig& c, const DeviceModel& device) {
  const double sms = device.sm_count;
  const double cols = double(p.m <= 8 ? 8 : p.m <= 16 ? 16 : round_up(p.m, 32));
  const double blocks = double(ceil_div(p.n, c.tile_n) * c.cluster_n);
  const double clusters = double(ceil_div(p.n, c.tile_n));
  const double slots = double(cluster_slots(c.cluster_n, device));
  const double waves = std::ceil(clusters / (slots * c.tile_k));
  const double per_sm = std::min<double>(c.tile_k, std::ceil(clusters / slots));
  const bool crowded = c.cluster_n > 2 && clusters > slots;
  const double pieces = double(ceil_div(ceil_div(p.m, 8), c.cluster_n));
  const double sent = (c.cluster_n - 1) * pieces * c.tile_n * 32;

  const double bytes = (c.tile_n + cols) * 2 * p.k / c.cluster_n;
  const double in_flight = (228.0 / c.tile_k - 1) * 1024 - sent;
  const double read = bytes / std::min(in_flight / kSkinnyLatencyUs, kSkinnySmBytesPerUs / per_sm);
  const double mma = double(p.k) / c.cluster_n / 16 * (c.tile_n / 64) *
                     std::max(cols / 2, kMinMmaCycles) * per_sm / kSkinnyCyclesPerUs;
  // Blocks spread over pairs of SMs first, and half of all SMs can read at the full rate.
  const bool halves = blocks <= sms / 2;
  const double busy = std::min(1.0, blocks / (halves ? sms / 2 : sms));
  const double dram = double(p.n) * p.k * 2 / kSkinnyDramBytesPerUs / std::pow(busy, kIdlePower);
  double main = overlap(dram, waves * std::max(read, mma), kSkinnyOverlap);
  if (per_sm > 1 || crowded) main *= 1 + kUneven * cols / 128 + (crowded ? kCrowded : 0);
  if (halves) main *= kUnsteady;
  if (is_cut(p, line_of_b(p), 32)) main *= 1 + kSkinnyCutSector / c.cluster_n;
  return kSkinnyLaunchUs + (waves - 1) * kSkinnyWaveUs + main + kPieceUs * pieces +
         (c.cluster_n > 1 ? kPairUs + sent / kPairBytesPerUs : 0) +
         (c.cluster_n == 8 ? kEightUs : 0);
}

}  // namespace

void add_skinny(const GemmProblem& problem, const DeviceModel& device, Candidates& candidates) {
  const char* refusal = device.hopper() ? skinny_refusal(problem) : kNotHopper;
  for (int i = 0; i < kNumSkinnyConfigs; ++i) {
    const GemmConfig& config = kSkinnyConfigs[i];
    Candidate candidate{{.family = Family::kSkinny, .config = i}, refusal};
    if (!refusal && config.cluster_n > ceil_div(problem.k, 128)) {
      candidate.rejected = "fewer steps of K than blocks to share them";
    }
    if (!candidate.rejected) candidate.plan.expected_us = skinny_us(problem, config, device);
    candidates.push_back(candidate);
  }
}

}  // namespace fusedops
