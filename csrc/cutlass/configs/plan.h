// What selection decides, as data: a plan says which compiled kernel runs a product and how. Host
// only.
#pragma once

#include "csrc/cutlass/configs/config.h"

namespace fusedops {

// What the ranking may use: the device and, for tests without one, made-up figures.
struct DeviceModel {
  int capability = 90;  // 10 * major + minor
  int sm_count = 132;
};

// GemmPlan::splits: the last wave of tiles is shared out (stream_k_tail.h).
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

struct Candidate {
  GemmPlan plan;
  const char* rejected = nullptr;  // the reason, or null when ranked
};

}  // namespace fusedops
