// What selection decides, as data: a plan says which compiled kernel runs a product and how. Host
// only.
#pragma once

#include "csrc/cutlass/configs/config.h"

namespace fusedops {

// What the ranking may use: the device and, for tests without one, made-up figures.
struct DeviceModel {
  int capability = 90;  // 10 * major + minor
  int sm_count = 132;

  constexpr bool hopper() const { return capability / 10 == 9; }
};

// How K is split among CTAs: not at all; in slices, whose fp32 sums splitk_reduce adds; or where
// the last wave leaves CTAs without a tile (stream_k_tail.h).
enum class KSplit : int8_t { kNone, kSlices, kTail };

// Who chose a plan: the time model, sm90_measured.h, the time model among the skinny kernels (which
// go before all others), or fusedops.tune.
enum class ChosenBy : int8_t { kModel, kMeasured, kSkinny, kTuned };

struct GemmPlan {
  Family family = Family::kSm80;
  int config = -1;  // index into the family's table; -1: nothing fits
  KSplit k_split = KSplit::kNone;
  int slices = 1;        // of K: more than one with kSlices alone
  int raster_width = 8;  // tiles along N that a persistent grid walks down M side by side
  int shared_tiles = 1;  // kCluster: those whose blocks share what they load
  double expected_us = 0;
  ChosenBy chosen_by = ChosenBy::kModel;
};

// Plan files, sweeps and gemm_with_config hold these choices as two numbers. `splits` are the
// slices, or 0 for a stream-K tail; `swizzle` is the raster width, or the shared tiles of kCluster.
constexpr GemmPlan plan_from_numbers(Family family, int config, int splits, int swizzle) {
  GemmPlan plan{.family = family, .config = config};
  plan.k_split = splits == 0 ? KSplit::kTail : splits == 1 ? KSplit::kNone : KSplit::kSlices;
  plan.slices = splits == 0 ? 1 : splits;
  (family == Family::kCluster ? plan.shared_tiles : plan.raster_width) = swizzle;
  return plan;
}
constexpr int splits_number(const GemmPlan& plan) {
  return plan.k_split == KSplit::kTail ? 0 : plan.slices;
}
constexpr int swizzle_number(const GemmPlan& plan) {
  return plan.family == Family::kCluster ? plan.shared_tiles : plan.raster_width;
}

struct Candidate {
  GemmPlan plan;
  const char* rejected = nullptr;  // the reason, or null when ranked
};

}  // namespace fusedops
