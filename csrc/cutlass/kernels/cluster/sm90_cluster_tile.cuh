// What a block of the kernels in sm90_cluster.cuh works on: its tile, its part of K, its shared
// memory, and what it shares with the other blocks of its cluster.
#pragma once

#include "csrc/common/device/activation.cuh"
#include "csrc/common/device/cluster.cuh"
#include "csrc/cutlass/column_norm.h"
#include "csrc/cutlass/kernels/hopper/sm90_pipeline.cuh"
#include "csrc/cutlass/kernels/hopper/sm90_tma.cuh"

namespace fusedops::cluster {

using namespace sm90;

struct Problem {
  const void* bias;  // (n,) or null
  void* y;           // (m, n), rows of ldy, each of whole 16-byte units
  void* z;           // the same before the activation, or null
  int64_t ldy;
  int m, n;
  int row_tiles;                      // of whole clusters
  int cluster_rows, cluster_columns;  // tiles of a cluster; 1 where its blocks share a tile
  int steps;                          // of K
  Activation activation;
  bool has_norm;
  ColumnNorm norm;
};

inline constexpr int kStepK = 64;         // values of K in a box: 128 bytes
inline constexpr int kPieceBytes = 2048;  // 64 rows by 8 columns in fp32, as WGMMA leaves them

// kGroups: warpgroups, of 64 rows of the tile each. kBlocks: of a cluster, each adds up a part of
// the tile's columns. kTransA, kTransB: K is not what is contiguous. kSwapped: rows are columns of
// y.
template <int kGroups_, int kColumns_, int kBlocks_, bool kTransA_, bool kTransB_, bool kSwapped_>
struct Shape {
  static constexpr int kGroups = kGroups_, kRows = kGroups * 64, kColumns = kColumns_;
  static constexpr int kBlocks = kBlocks_, kPart = kColumns / kBlocks, kPieces = kPart / 8;
  static constexpr bool kTransA = kTransA_, kTransB = kTransB_, kSwapped = kSwapped_;
  static_assert(kColumns % (kBlocks * (kSwapped ? 8 : 16)) == 0 && !(kTransB && kColumns % 64));
  // Whether boxes of b, which are 64 columns wide, hold parts of several blocks: these come in the
  // tile's order and change places behind the mainloop.
  static constexpr bool kTurned = kTransB && kPart % 64 != 0;
  static constexpr int kMultipliers = kGroups * 128, kThreads = kMultipliers + 32;
  static constexpr int kABytes = kRows * kBoxRowBytes, kPartBytes = kPart * kBoxRowBytes;
  static constexpr int kStageBytes = kABytes + kBlocks * kPartBytes;
  // Shared memory: stages, what other blocks send, a full and an empty barrier of each stage, and
  // one for what each warpgroup gets. Outputs take the place of stages.
  static constexpr int kReceivedBytes = kGroups * (kBlocks - 1) * kPieces * kPieceBytes;
  static constexpr int kFit = (shared_budget(1) - kReceivedBytes - 1024) / kStageBytes;
  static constexpr int kStages = kFit < 12 ? kFit : 12;
  static constexpr int kBarriers = kStages * kStageBytes + kReceivedBytes;
  static constexpr int kSharedBytes = kBarriers + (2 * kStages + kGroups) * 8;
  static constexpr int kOutRowBytes = kSwapped ? 128 : kPart * 2 + 16;
  static constexpr int kOutBytes = (kSwapped ? kGroups * kPart : kRows) * kOutRowBytes;
  static constexpr int kNorms = kOutBytes;  // scale and shift of each column, behind the outputs
  static_assert(kStages >= 3 && kNorms + kPart * 8 <= kStages * kStageBytes);
};

// Addresses in shared memory.
template <class S>
struct Shared {
  unsigned char* bytes;
  uint32_t base;
  __device__ uint32_t stage(int i) const { return base + i * S::kStageBytes; }
  // What the block `distance` ranks before has sent.
  __device__ uint32_t received(int group, int distance) const {
    return base + S::kStages * S::kStageBytes +
           (group * (S::kBlocks - 1) + distance - 1) * S::kPieces * kPieceBytes;
  }
  __device__ uint32_t full(int stage) const { return base + S::kBarriers + stage * 8; }
  __device__ uint32_t empty(int stage) const { return full(S::kStages + stage); }
  __device__ uint32_t sent(int group) const { return full(2 * S::kStages + group); }
};

// This block's part of the work.
template <class S>
struct Part {
  int rank;
  int row0, tile_column0;  // where the tile begins
  int first, last;         // steps of K
  __device__ explicit Part(const Problem& p) {
    rank = static_cast<int>(cluster_rank());
    if constexpr (S::kBlocks > 1) {
      const int tile = blockIdx.x / S::kBlocks;
      row0 = tile % p.row_tiles * S::kRows;
      tile_column0 = tile / p.row_tiles * S::kColumns;
      first = int(int64_t{p.steps} * rank / S::kBlocks);
      last = int(int64_t{p.steps} * (rank + 1) / S::kBlocks);
    } else {
      const int cluster = blockIdx.x / (p.cluster_rows * p.cluster_columns);
      const int across = p.row_tiles / p.cluster_rows;
      const int row = cluster % across * p.cluster_rows + rank % p.cluster_rows;
      const int column = cluster / across * p.cluster_columns + rank / p.cluster_rows;
      row0 = row * S::kRows;
      tile_column0 = column * S::kColumns;
      first = 0, last = p.steps;
    }
  }
  __device__ int rank_after(int distance) const {
    const int r = rank + distance;
    return r < S::kBlocks ? r : S::kBlocks == 1 ? 0 : r - S::kBlocks;
  }
  // The first column that the block `distance` ranks on adds up. In registers, and in shared memory
  // where they are not turned, they come in the order of distances: a block's own columns first.
  __device__ int column0(int distance) const {
    return tile_column0 + rank_after(distance) * S::kPart;
  }
};

// ---- operands that the blocks of a cluster share ----

// Blocks with tiles of the same rows share those of a, with the same columns those of b: stage by
// stage they take turns, and a copy reaches all of them. The numbers of blocks are powers of two.
template <class S>
struct Sharing {
  int rows, columns;      // tiles of the cluster
  int rank, row, column;  // this block's
  __device__ Sharing(const Problem& p, const Part<S>& part)
      : rows(p.cluster_rows),
        columns(p.cluster_columns),
        rank(part.rank),
        row(part.rank % p.cluster_rows),
        column(part.rank / p.cluster_rows) {}
  // Who loads a stage's rows of a and of b.
  __device__ int loader_of_a(int stage) const { return row + (stage & (columns - 1)) * rows; }
  __device__ int loader_of_b(int stage) const { return (stage & (rows - 1)) + column * rows; }
  __device__ bool any() const { return rows * columns > 1; }
  __device__ bool loads_a(int stage) const { return (stage & (columns - 1)) == column; }
  __device__ bool loads_b(int stage) const { return (stage & (rows - 1)) == row; }
  // The blocks that copies for a row or a column of tiles reach.
  __device__ uint16_t blocks_of_row() const {
    int blocks = 0;
    for (int i = 0; i < columns; ++i) blocks |= 1 << (row + i * rows);
    return uint16_t(blocks);
  }
  __device__ uint16_t blocks_of_column() const {
    return uint16_t(((1 << rows) - 1) << (column * rows));
  }
  // What each warp of those that read this block's copies says when it is done with a stage.
  __device__ int releases(int stage) const {
    return 1 + (any() && loads_a(stage) ? columns : 0) + (any() && loads_b(stage) ? rows : 0);
  }
};

}  // namespace fusedops::cluster
