// How the blocks of a cluster agree on the statistics of 128 rows, of which each has a part.
//
// A row has an owner among the blocks. Every block sends its part there; the owner joins the parts
// in the blocks' order and sends the statistics to all. Messages report to barriers of whoever gets
// them. NOTE: the barrier of a cluster would let each thread wait for all that it wrote to memory.
#pragma once

#include "csrc/common/device/mbarrier.cuh"
#include "csrc/cuda/fp8/fp8_tile.cuh"

namespace fusedops {

inline constexpr int kTileLog = 7;
static_assert(kTile == 1 << kTileLog);

// What a block knows of its part of a row.
template <bool kRms>
struct PartOfRow {
  float squares, mean;  // of a layer norm differences to the mean
};
template <>
struct PartOfRow<true> {
  float squares;
};

template <bool kRms>
struct RowStatistics {
  float rstd, mean;
};
template <>
struct RowStatistics<true> {
  float rstd;
};

// A block's shared memory for it. The statistics themselves arrive elsewhere.
template <bool kRms>
struct RowExchange {
  PartOfRow<kRms> parts[kTile];  // of the rows that the block owns, those of a block together
  uint64_t parts_arrived, statistics_arrived;
  uint2 of_warps[kTileWarps];  // bits of a tile's scale and inverse, by warps
};

// To the same place of block `rank` of the cluster, whose barrier counts the bytes.
template <class V>
__device__ __forceinline__ void send_to_block(V* to, uint64_t* barrier, uint32_t rank,
                                              const V& value) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const uint32_t there = cluster_address(shared_address(to), rank);
  const uint32_t reports = cluster_address(shared_address(barrier), rank);
  const auto* const words = reinterpret_cast<const uint32_t*>(&value);
  if constexpr (sizeof(V) == 4) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
            there),
        "r"(words[0]), "r"(reports)
        : "memory");
  } else {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, "
        "[%3];" ::"r"(there),
        "r"(words[0]), "r"(words[1]), "r"(reports)
        : "memory");
  }
#endif
}

// The blocks of a cluster: a power of two. NOTE: a division takes some twenty instructions.
struct ClusterSize {
  int log;

  __device__ __forceinline__ int blocks() const { return 1 << log; }
  __device__ __forceinline__ int owned_rows() const { return kTile >> log; }  // of a block
  __device__ __forceinline__ int owner_of(int row) const { return row >> (kTileLog - log); }
};

// Tiles of a block's part of the columns: [first, end).
struct TileRange {
  int first, end;
};
__device__ __forceinline__ TileRange tiles_of(int rank, ClusterSize cluster, int tiles) {
  return {rank * tiles >> cluster.log, (rank + 1) * tiles >> cluster.log};
}
__device__ __forceinline__ float columns_of(TileRange range, int64_t k) {
  return float(min(int64_t{range.end} * kTile, k) - int64_t{range.first} * kTile);
}

// The statistics of a row, from what all blocks know, joined as Chan, Golub and LeVeque do. parts:
// that of the first block; those of the others lie `apart`.
template <bool kRms>
__device__ __forceinline__ RowStatistics<kRms> join_parts(const PartOfRow<kRms>* parts, int apart,
                                                          ClusterSize cluster, int tiles, int64_t k,
                                                          float eps) {
  const float inverse = 1.0f / float(k);
  float squares = 0;
  if constexpr (kRms) {
#pragma unroll 4
    for (int b = 0; b < cluster.blocks(); ++b) squares += parts[b * apart].squares;
    return {rsqrtf(squares * inverse + eps)};
  } else {
    float mean = 0;
#pragma unroll 4
    for (int b = 0; b < cluster.blocks(); ++b) {
      mean += columns_of(tiles_of(b, cluster, tiles), k) * parts[b * apart].mean;
    }
    mean *= inverse;
#pragma unroll 4
    for (int b = 0; b < cluster.blocks(); ++b) {
      const PartOfRow<kRms> part = parts[b * apart];
      const float d = part.mean - mean;
      squares += part.squares;
      squares += columns_of(tiles_of(b, cluster, tiles), k) * d * d;
    }
    return {rsqrtf(squares * inverse + eps), mean};
  }
}

// Joins the parts of the rows that block `rank` owns, once they are there. Threads 0 to 127 call
// it, each for a row and a block that gets its statistics: kept(row, statistics) by one of them.
template <bool kRms, class Keep>
__device__ __forceinline__ void answer_rows(RowExchange<kRms>* exchange,
                                            RowStatistics<kRms>* statistics, int rank,
                                            ClusterSize cluster, int tiles, int64_t k, float eps,
                                            uint32_t parity, const Keep& keep) {
  const int owned = cluster.owned_rows();
  const int row = int(threadIdx.x) >> cluster.log;
  const int to = int(threadIdx.x) & (cluster.blocks() - 1);
  wait_for_barrier(shared_address(&exchange->parts_arrived), parity);
  const auto found = join_parts(exchange->parts + row, owned, cluster, tiles, k, eps);
  // NOTE: whoever has an answer may send its next part, and lanes answer different blocks.
  __syncwarp();
  const int in_tile = rank * owned + row;
  send_to_block(statistics + in_tile, &exchange->statistics_arrived, to, found);
  if (to == 0) keep(in_tile, found);
}

}  // namespace fusedops
