// What a compiled GEMM kernel is, as data: selection ranks these, instances/*.cu compiles them,
// registry.h joins the two.
#pragma once

#include <string>

#include "csrc/cutlass/problem.h"

namespace fusedops {

// cp.async + mma.sync or FMA; TMA + WGMMA; TMA + WGMMA with the operands swapped, for few rows of
// A; TMA + WGMMA where the blocks of a cluster share K or operands, for few tiles.
enum class Family : int8_t { kSm80, kSm90, kSkinny, kCluster };
inline constexpr int kNumFamilies = 4;
inline constexpr const char* kFamilyNames[kNumFamilies] = {"sm80", "sm90", "skinny", "cluster"};

enum class Schedule : int8_t { kMultistage, kPingpong, kCooperative };

struct GemmConfig {
  int tile_m, tile_n, tile_k;
  int cluster_m, cluster_n;
  Schedule schedule;
  unsigned variants;  // bit set of variant_bit() for which kernels are compiled
};

// One bit per (epilogue, a major, b major): which forms of a config exist. Forward TN is (kK, kK).
constexpr unsigned variant_bit(Epilogue epilogue, Major a, Major b) {
  return 1u << (static_cast<int>(epilogue) * 4 + static_cast<int>(a) * 2 + static_cast<int>(b));
}

int num_configs(Family family);

const GemmConfig& config_of(Family family, int config);

// "sm90 128x192 pingpong 2x1"
std::string config_name(Family family, int config);

struct KernelKey {
  Family family;
  int config;  // index into the family's config table
  DType dtype;
  MathMode math;
  Major a, b;
  Epilogue epilogue;
};

}  // namespace fusedops
