// The kernels of one wave (cuda/sm90_cluster.cuh), and what they accept: data for selection (host)
// and for cuda/sm90_cluster.cu (device).
#pragma once

#include "cutlass/config.h"

namespace fusedops {

// swapped: WGMMA takes b's columns as its rows, in steps of 64, and a's rows in finer steps.
struct ClusterConfig : GemmConfig {
  bool swapped;
};

namespace cluster {

inline constexpr unsigned kForward = variant_bit(Epilogue::kFused, Major::kK, Major::kK) |
                                     variant_bit(Epilogue::kPreact, Major::kK, Major::kK);

// The blocks of a cluster (cluster_n) take the same tile and split K.
constexpr ClusterConfig config(int rows, int columns, int blocks) {
  constexpr unsigned kDgrad = variant_bit(Epilogue::kFused, Major::kK, Major::kMN);
  constexpr unsigned kWgrad = variant_bit(Epilogue::kFused, Major::kMN, Major::kMN);
  // A box of an operand that is not K-contiguous is 64 wide.
  const unsigned variants = columns / blocks % 64 == 0 ? kForward | kDgrad | kWgrad : kForward;
  return {{rows, columns, 64, 1, blocks, Schedule::kMultistage, variants}, false};
}

constexpr ClusterConfig swapped(int rows, int columns, int blocks) {
  return {{rows, columns, 64, 1, blocks, Schedule::kMultistage, kForward}, true};
}

}  // namespace cluster

inline constexpr ClusterConfig kClusterConfigs[] = {
    cluster::config(64, 96, 2),    cluster::config(64, 128, 2),   cluster::config(64, 128, 4),
    cluster::config(64, 192, 2),   cluster::config(128, 96, 2),   cluster::config(128, 128, 2),
    cluster::config(128, 128, 4),  cluster::config(128, 160, 2),  cluster::config(128, 192, 2),
    cluster::config(192, 128, 2),  cluster::config(192, 160, 2),  cluster::swapped(128, 64, 1),
    cluster::swapped(80, 128, 1),  cluster::swapped(96, 128, 1),  cluster::swapped(112, 128, 1),
    cluster::swapped(144, 128, 1), cluster::swapped(160, 128, 1), cluster::swapped(176, 128, 1),
    cluster::swapped(192, 128, 1), cluster::swapped(112, 192, 1), cluster::swapped(160, 192, 1),
    cluster::swapped(80, 128, 2),  cluster::swapped(96, 128, 2),  cluster::swapped(112, 128, 2),
    cluster::swapped(160, 128, 2), cluster::swapped(224, 128, 2), cluster::swapped(160, 128, 4),
};
inline constexpr int kNumClusterConfigs = sizeof(kClusterConfigs) / sizeof(kClusterConfigs[0]);

// Why this kernel cannot run a problem that TMA can address (tma_refusal), or null.
constexpr const char* cluster_refusal(const ClusterConfig& config, const GemmProblem& p) {
  if (p.dtype != DType::kFloat16 && p.dtype != DType::kBFloat16) return "neither fp16 nor bf16";
  if (p.slices != 1 || p.split_parts) return "no kernel over slices or parts";
  if (!(config.variants & variant_bit(p.epilogue, p.a.major, p.b.major))) {
    return "no kernel of this tile with this layout and epilogue";
  }
  if (p.n % 8 != 0 || p.ldd % 8 != 0) return "rows of the output are not whole 16-byte units";
  if ((p.k + 63) / 64 < config.cluster_n) return "fewer steps of K than blocks to share them";
  return nullptr;
}

}  // namespace fusedops
