// The kernels of one wave (sm90_cluster.cuh), and what they accept: data for selection (host)
// and for sm90_cluster.cu (device).
#pragma once

#include "csrc/common/int_math.h"
#include "csrc/cutlass/configs/config.h"

namespace fusedops {

// swapped: WGMMA takes b's columns as its rows, in steps of 64, and a's rows in finer steps. The
// cluster_n blocks of a tile split K; where that is one block, those of neighbouring tiles may
// share what they load (tile_cluster).
struct ClusterConfig : GemmConfig {
  bool swapped;
};

namespace cluster {

inline constexpr unsigned kForward = variant_bit(Epilogue::kFused, Major::kK, Major::kK) |
                                     variant_bit(Epilogue::kPreact, Major::kK, Major::kK) |
                                     variant_bit(Epilogue::kNorm, Major::kK, Major::kK);

constexpr ClusterConfig plain(int rows, int columns) {
  return {{rows, columns, 64, 1, 1, Schedule::kMultistage, kForward}, false};
}

constexpr ClusterConfig split_k(int rows, int columns, int blocks) {
  constexpr unsigned kDgrad = variant_bit(Epilogue::kFused, Major::kK, Major::kMN);
  constexpr unsigned kWgrad = variant_bit(Epilogue::kFused, Major::kMN, Major::kMN);
  // A box of an operand that is not K-contiguous is 64 wide.
  const unsigned variants = columns % 64 == 0 ? kForward | kDgrad | kWgrad : kForward;
  return {{rows, columns, 64, 1, blocks, Schedule::kMultistage, variants}, false};
}

constexpr ClusterConfig swapped(int rows, int columns, int blocks = 1) {
  return {{rows, columns, 64, 1, blocks, Schedule::kMultistage, kForward}, true};
}

}  // namespace cluster

inline constexpr ClusterConfig kClusterConfigs[] = {
    cluster::split_k(64, 96, 2),   cluster::split_k(64, 128, 2),  cluster::split_k(64, 128, 4),
    cluster::split_k(128, 128, 2), cluster::split_k(128, 128, 4), cluster::split_k(192, 128, 2),
    cluster::swapped(80, 128, 2),  cluster::swapped(112, 128, 2), cluster::swapped(160, 128, 2),
    cluster::plain(128, 80),       cluster::plain(128, 96),       cluster::plain(128, 112),
    cluster::plain(128, 144),      cluster::swapped(72, 64),      cluster::swapped(80, 64),
    cluster::swapped(88, 64),      cluster::swapped(104, 64),     cluster::swapped(120, 64),
    cluster::swapped(128, 64),     cluster::swapped(136, 64),     cluster::swapped(152, 64),
    cluster::swapped(168, 64),     cluster::swapped(208, 64),     cluster::swapped(72, 128),
    cluster::swapped(80, 128),     cluster::swapped(88, 128),     cluster::swapped(96, 128),
    cluster::swapped(104, 128),    cluster::swapped(112, 128),    cluster::swapped(120, 128),
    cluster::swapped(128, 128),    cluster::swapped(136, 128),    cluster::swapped(144, 128),
    cluster::swapped(152, 128),    cluster::swapped(160, 128),    cluster::swapped(168, 128),
    cluster::swapped(176, 128),    cluster::swapped(184, 128),    cluster::swapped(216, 128),
    cluster::swapped(88, 192),     cluster::swapped(104, 192),    cluster::swapped(136, 192),
    cluster::swapped(160, 192),    cluster::swapped(192, 192),    cluster::swapped(120, 256),
    cluster::swapped(136, 256),    cluster::split_k(64, 128, 8),  cluster::split_k(128, 128, 8),
};
inline constexpr int kNumClusterConfigs = sizeof(kClusterConfigs) / sizeof(kClusterConfigs[0]);

// Blocks of a cluster along M and N that take a tile each: what they have in common of an operand
// they load once for all of them.
struct TileCluster {
  int m = 1, n = 1;
  constexpr int tiles() const { return m * n; }
  // Tiles of y, with those that fill the last clusters.
  constexpr int64_t tiles_of(const ClusterConfig& c, const GemmProblem& p) const {
    return round_up(ceil_div(p.m, c.tile_m), m) * round_up(ceil_div(p.n, c.tile_n), n);
  }
};

inline constexpr int kTileClusters[] = {1, 4, 8};  // pairs never won a measured product

// The shape of clusters of up to so many tiles: the fewest tiles, then the fewest rows to load.
constexpr TileCluster tile_cluster(const ClusterConfig& config, const GemmProblem& p, int tiles) {
  constexpr TileCluster kShapes[] = {{4, 2}, {2, 4}, {4, 1}, {2, 2}, {1, 4}};
  TileCluster best;
  if (config.cluster_n > 1 || tiles < 4) return best;
  const auto rows = [&](const TileCluster& c) {
    return double(config.tile_m) / c.n + double(config.tile_n) / c.m;
  };
  for (const TileCluster& shape : kShapes) {
    if (shape.tiles() != (tiles < 8 ? 4 : 8)) continue;
    const int64_t more = shape.tiles_of(config, p) - best.tiles_of(config, p);
    if (best.tiles() == 1 || more < 0 || (more == 0 && rows(shape) < rows(best))) best = shape;
  }
  return best;
}

// Why this kernel cannot run a problem that TMA can address (tma_refusal), or null.
constexpr const char* cluster_refusal(const ClusterConfig& config, const GemmProblem& p) {
  if (p.dtype != DType::kFloat16 && p.dtype != DType::kBFloat16) return "neither fp16 nor bf16";
  if (p.slices != 1) return "no kernel over slices";
  if (!(config.variants & variant_bit(p.epilogue, p.a.major, p.b.major))) {
    return "no kernel of this tile with this layout and epilogue";
  }
  // NOTE: what is added behind a norm would be waited for; other kernels have it on its way before.
  if (p.epilogue == Epilogue::kNorm && p.aux != nullptr) return "no kernel that adds a residual";
  if (p.n % 8 != 0 || p.ldd % 8 != 0) return "rows of the output are not whole 16-byte units";
  if (ceil_div(p.k, 64) < config.cluster_n) return "fewer steps of K than blocks to share them";
  return nullptr;
}

}  // namespace fusedops
