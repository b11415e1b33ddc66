// Where batch norm in training runs in clusters.
#pragma once

#include "csrc/common/dtype.h"
#include "csrc/cuda/batch_norm/batch_norm_cluster.cuh"
#include "csrc/cuda/batch_norm/batch_norm_train_launch.cuh"

namespace fusedops {

// NOTE: an H200 measured steps of layers as slower (2048 to 512 channels on 7x7: 77 us, passes 74)
// while a thread's code was unrolled over rows; as it is now it has not been measured.
inline constexpr bool kTakesClusters = false;
inline constexpr int kClusterChunks = 4;                     // of 16 bytes: a cluster's row
inline constexpr int64_t kClusterBytes = int64_t{32} << 20;  // of a tensor
static_assert(kClusterChunks * 8 <= kClusterChannels);

inline WalkGrid cluster_grid(int64_t rows, int64_t chunks, int threads_x, int blocks) {
  WalkGrid grid{};
  grid.threads_x = threads_x;
  grid.threads_y = kClusterThreads / threads_x;
  grid.col_blocks = ceil_div(chunks, int64_t{threads_x});
  grid.rows_per_block = ceil_div(rows, int64_t{blocks});
  grid.row_blocks = blocks;
  return grid;
}

// Bytes of shared memory for rows where so many blocks are on a multiprocessor at once.
inline int64_t cluster_room(int shared_memory_per_block, int at_once) {
  constexpr int64_t kReserved = 1024;  // of each block, beside what it may ask for
  return (shared_memory_per_block + kReserved) / at_once - kReserved -
         static_cast<int64_t>(sizeof(ClusterShared));
}

// None: where the rows of a few channels do not fit into the shared memory of a cluster, or a block
// would have few of them. inputs: tensors that are kept.
inline std::optional<TrainPlan> cluster_plan(int64_t rows, int64_t channels, int vec, int sm_count,
                                             int shared_memory_per_block, int inputs) {
  const int64_t chunks = ceil_div(channels, int64_t{vec});
  if (!kTakesClusters || rows * chunks * 16 > kClusterBytes) return std::nullopt;
  // NOTE: pieces of 64 bytes are what memory gives at once; of 32, what the L2 cache does.
  for (int threads_x = kClusterChunks; threads_x >= 2; threads_x /= 2) {
    const int64_t columns = ceil_div(chunks, int64_t{threads_x});
    if (threads_x > 2 && 4 * columns * kClusterBlocks < 3 * int64_t{sm_count}) continue;
    for (int blocks = 2; blocks <= kClusterBlocks; blocks *= 2) {
      const int64_t all = columns * blocks;
      if (blocks < kClusterBlocks && 8 * all < 7 * int64_t{sm_count}) continue;
      const WalkGrid grid = cluster_grid(rows, chunks, threads_x, blocks);
      // NOTE: so no block is without rows.
      if (grid.rows_per_block < grid.threads_y) break;
      const int64_t slot = int64_t{inputs} * kClusterThreads * 16;
      const int64_t wanted = ceil_div(grid.rows_per_block, int64_t{grid.threads_y});
      // NOTE: one full wave, or two blocks at once; the few rows that do not fit are read again.
      const int64_t two = cluster_room(shared_memory_per_block, 2) / slot;
      const int64_t one = cluster_room(shared_memory_per_block, 1) / slot;
      const int64_t most = all <= sm_count && 8 * all >= 7 * int64_t{sm_count} ? one : two;
      if (8 * wanted > 9 * most) continue;
      return TrainPlan{grid, static_cast<int>(std::min(wanted, most)), true};
    }
  }
  return std::nullopt;
}

// In batch_norm_cluster.cu.
void launch_cluster_train(const TrainProblem& problem, DType dtype, bool forward,
                          cudaStream_t stream);

}  // namespace fusedops
