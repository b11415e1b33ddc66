// What the host and the kernels of row_team.cuh agree on.
#pragma once

#include <cstdint>

#include "csrc/common/row_chunk.h"

namespace fusedops {

inline constexpr int kRowThreads = 512;  // the largest block
inline constexpr int kRowStages = 3;     // rows in shared memory: one in work, two on the way
inline constexpr int kRowCluster = 8;    // blocks of a cluster that every Hopper GPU takes

// Kernels that read a row in a loop have such blocks.
inline constexpr int kStreamThreads = 256, kStreamBlocks = 4;  // blocks on a multiprocessor

inline constexpr int kLineChunks = 8;  // of a line of L2

// Which threads hold a row: made by plan_rows (row_plan.h).
struct RowLayout {
  int64_t rows;
  int n;        // elements of a row
  int lanes;    // threads of a row in a warp, a power of two
  int cluster;  // blocks of a row; 0: the row is held by lanes of one warp
  int chunks;   // of a thread
  int pitch;    // bytes of a row in shared memory
  bool bulk;    // one thread asks for a whole row
};

// Kernels of row_direct.cuh and row_ends.cuh. Rows that leave the GPU partly idle get a thread for
// every chunk, or where they take a cluster for every two (kFew); others are held by lanes of a
// warp, by a block, by a wide block, or by a block that keeps a part of its row in shared memory.
enum class DirectKind { kNone, kFewLanes, kFewBlocks, kFewClusters, kLanes, kBlock, kWide, kLong };

inline constexpr int kBlockThreads = 256, kWideThreads = 512;  // of kBlock and kWide, the most

// What a warp tells the other warps of its row.
template <class C>
struct alignas(4 * sizeof(C)) RowSlot {
  C a, b, c;
};

// Shared memory of kernels of row_direct.cuh beside rows: a slot for every warp.
inline constexpr int kDirectSlots = 32;
inline constexpr int kDirectSlotBytes = kDirectSlots * 16;

inline constexpr int kSlotValues = 4;  // of a RowSlot

template <class C>
constexpr int64_t row_slot_bytes(int cluster, int threads) {
  return int64_t{2} * cluster * (threads / 32) * kSlotValues * static_cast<int64_t>(sizeof(C)) +
         (cluster > 1 ? 16 : 0);  // a barrier for either set
}

// Behind the slots: a barrier per row on its way.
constexpr int row_barrier_bytes(int warps, int stages = kRowStages) {
  return (warps * stages * 8 + 15) / 16 * 16;
}

}  // namespace fusedops
