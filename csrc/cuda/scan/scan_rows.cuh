// Scans along contiguous rows, one read and one write of memory.
//
// A block holds a tile in registers (scan_block.cuh). Short rows share a tile, as few of them as
// leave work for every SM, and a block has no more warps than they need. Long rows are taken
// tile after tile by one block where there are rows for all SMs; else a row of up to eight tiles is
// a cluster of blocks, which exchange their totals through distributed shared memory. Of longer
// ones a first launch makes the totals of the tiles and a second one scans where the GPU holds all
// tiles at a time; where it does not, they are chained over the grid (scan_chain.cuh).
#pragma once

#include <cooperative_groups.h>

#include <algorithm>

#include "csrc/common/device/pdl.cuh"
#include "csrc/cuda/scan/scan_block.cuh"

namespace fusedops {

inline constexpr int kScanMaxCluster = 8;  // blocks, what every GPU of 9.0 and later grants

// Totals of the blocks of a cluster, combined in the order of their ranks.
template <class Op>
__device__ __forceinline__ typename Op::State cluster_prefix(ScanShared<Op>& shared,
                                                             const typename Op::State& total) {
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  const int lane = threadIdx.x % 32, rank = static_cast<int>(cluster.block_rank());
  if (threadIdx.x == 0) shared.sum = total;
  cluster.sync();
  return reduce_lanes<Op>(lane < rank ? *cluster.map_shared_rank(&shared.sum, lane)
                                      : Op::identity());
#else
  return total;  // the host never asks for a cluster
#endif
}

template <class Op, class Mode>
inline constexpr int kScanBlocks = sizeof(typename Op::State) > 4 ? 2  // per SM
                                   : Mode::anywhere               ? 3
                                                                  : 4;
inline constexpr int kScanAheadBlocks = 2;  // with the next tile on its way
// Tiles of an SM up to which two launches are sooner than a chain, which has to be cleared first
// and whose blocks hold several tiles. 0: a chain always.
inline constexpr int kSpreadTiles = 4;

// Tiles of short rows on an SM, where there are no more.
template <class Op>
inline constexpr int kScanTilesPerSm = sizeof(typename Op::State) > 4 ? 2 : 4;

// A tile of whole rows, or one tile of a long row.
template <class Op, class Mode>
__global__ void __launch_bounds__(kScanThreads, kScanBlocks<Op, Mode>)
    scan_rows_kernel(const ScanRows<Op> p) {
  using State = typename Op::State;
  using Window = ScanWindow<Op, Mode>;
  __shared__ ScanShared<Op> shared;
  __shared__ IndexStage<Op> stage;
  const auto tiles = static_cast<unsigned>(p.tiles_per_row);
  const int64_t row = blockIdx.x / tiles * p.rows_per_tile;
  const int64_t rows = Mode::packed ? min(p.rows_per_tile, p.rows - row) : 1;
  const Window window(p.x + row * p.x_stride, row * p.n, rows * p.n, blockIdx.x % tiles);
  Packed<typename Window::In> in[kScanVectors];
  wait_for_predecessor();
  window.load(in);
  shared.clear_missing();
  ScanShare<Op, Mode, true> share;
  share.scan(shared, window, in, p, [&](const Total<State>& total) {
    return Mode::packed || tiles == 1 ? Op::identity() : cluster_prefix(shared, total.state);
  });
  share.store(window, in, p, stage);
#if __CUDA_ARCH__ >= 900
  // Shared memory stays until every block has read it
  if (!Mode::packed && p.clustered) cooperative_groups::this_cluster().sync();
#endif
}

// What precedes a tile: the totals of the tiles before it in its row, in order.
template <class Op>
__device__ __forceinline__ typename Op::State earlier_tiles(const typename Op::State* totals,
                                                            unsigned tile) {
  const unsigned lane = threadIdx.x % 32, share = (tile + 31) / 32;
  const unsigned end = min(tile, (lane + 1) * share);
  auto sum = Op::identity();
#pragma unroll 4
  for (unsigned i = lane * share; i < end; ++i) sum = Op::combine(sum, totals[i]);
  return reduce_lanes<Op>(sum);
}

// A tile of a long row, in the first launch (its total) or the second one.
template <class Op, class Mode, bool kTotals>
__global__ void __launch_bounds__(kScanThreads, kScanBlocks<Op, Mode>)
    scan_spread_kernel(const ScanRows<Op> p) {
  using State = typename Op::State;
  using Window = ScanWindow<Op, Mode>;
  __shared__ ScanShared<Op> shared;
  __shared__ IndexStage<Op> stage;
  const auto tiles = static_cast<unsigned>(p.tiles_per_row);
  const unsigned row = blockIdx.x / tiles, tile = blockIdx.x - row * tiles;
  State* const totals = reinterpret_cast<State*>(p.chain) + row * tiles;
  const Window window(p.x + row * p.x_stride, row * p.n, p.n, tile);
  Packed<typename Window::In> in[kScanVectors];
  wait_for_predecessor();
  if (kTotals && tile == tiles - 1) return;
  window.load(in);
  const State prefix = kTotals ? Op::identity() : earlier_tiles<Op>(totals, tile);
  State sum;
  ScanShare<Op, Mode> share;
  share.scan(shared, window, in, p, [&](const Total<State>& total) {
    sum = total.state;
    return prefix;
  });
  if constexpr (kTotals) {
    if (threadIdx.x == 0) totals[tile] = sum;
  } else {
    share.store(window, in, p, stage);
  }
}

// A long row: tile after tile, the next one already on its way.
template <class Op, class Mode>
__global__ void __launch_bounds__(kScanThreads, kScanAheadBlocks)
    scan_loop_kernel(const ScanRows<Op> p) {
  using State = typename Op::State;
  using Window = ScanWindow<Op, Mode>;
  __shared__ ScanShared<Op> shared[2];  // NOTE: two, so that one barrier per tile is enough
  __shared__ IndexStage<Op> stage;
  const int64_t row = blockIdx.x;
  const auto window_of = [&](int64_t tile) {
    return Window(p.x + row * p.x_stride, row * p.n, p.n, tile);
  };
  Packed<typename Window::In> in[kScanVectors], next[kScanVectors];
  wait_for_predecessor();
  window_of(0).load(next);
  State before = Op::identity();
  for (int64_t tile = 0; tile < p.tiles_per_row; ++tile) {
#pragma unroll
    for (int k = 0; k < kScanVectors; ++k) in[k] = next[k];
    if (tile + 1 < p.tiles_per_row) window_of(tile + 1).load(next);
    const Window window = window_of(tile);
    ScanShare<Op, Mode> share;
    share.scan(shared[tile % 2], window, in, p, [&](const Total<State>& total) {
      const State prefix = before;
      before = Op::combine(before, total.state);
      return prefix;
    });
    share.store(window, in, p, stage);
  }
}

// Rows per tile and tiles per row, one of which is 1; the first vector may start before the row.
// False: the rows are for scan_chain.cuh.
template <class Op>
bool plan_rows(ScanRows<Op>& p, bool clusters, int sm_count) {
  constexpr int kWaves = 2;
  p.per_n = 1.0f / static_cast<float>(p.n);
  const int64_t lead = p.n % Op::kVec == 0 ? 0 : Op::kVec - 1;
  p.rows_per_tile = p.x_stride == p.n ? std::max<int64_t>(1, (kScanTile<Op> - lead) / p.n) : 1;
  p.tiles_per_row = ceil_div(p.n + lead, int64_t{kScanTile<Op>});
  p.threads = kScanThreads;
  if (p.tiles_per_row == 1) {
    const int64_t spread = ceil_div(p.rows, int64_t{kScanTilesPerSm<Op>} * sm_count);
    p.rows_per_tile = std::min(p.rows_per_tile, std::max<int64_t>(spread, 1));
    const int64_t vectors = ceil_div(p.rows_per_tile * p.n + lead, int64_t{Op::kVec});
    p.threads = static_cast<int>(std::min<int64_t>(round_up(vectors, int64_t{32}), kScanThreads));
  }
  p.looped = p.tiles_per_row > 1 && p.rows >= int64_t{kWaves} * kScanAheadBlocks * sm_count;
  p.clustered = clusters && p.tiles_per_row > 1 && p.tiles_per_row <= kScanMaxCluster && !p.looped;
  p.spread = p.tiles_per_row > 1 && !p.looped && !p.clustered &&
             p.rows * p.tiles_per_row <= int64_t{kSpreadTiles} * sm_count;
  return p.tiles_per_row == 1 || p.looped || p.clustered || p.spread;
}

template <class Op>
int64_t rows_bytes(const ScanRows<Op>& p) {
  return p.spread ? p.rows * p.tiles_per_row * int64_t{sizeof(typename Op::State)} : 0;
}

template <class Op, class Mode>
void launch_spread(const ScanRows<Op>& p, bool overlap, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(p.rows * p.tiles_per_row)), threads(kScanThreads);
  launch_kernel(scan_spread_kernel<Op, Mode, true>, blocks, threads, 0, stream, overlap, p);
  launch_kernel(scan_spread_kernel<Op, Mode, false>, blocks, threads, 0, stream, overlap, p);
}

// `overlap`: as for launch_kernel.
template <class Op, class Mode>
void launch_tiles(const ScanRows<Op>& p, bool overlap, cudaStream_t stream) {
  const int64_t blocks = ceil_div(p.rows, p.rows_per_tile) * p.tiles_per_row;
  launch_cluster_kernel(scan_rows_kernel<Op, Mode>, dim3(static_cast<unsigned>(blocks)),
                        dim3(p.threads), p.clustered ? p.tiles_per_row : 1, 0, stream, overlap, p);
}

template <class Op, bool kReverse>
void launch_scan_rows(const ScanRows<Op>& p, bool overlap, cudaStream_t stream) {
  using OneRow = ScanMode<Heads::kNone, kReverse>;
  if (p.looped) {
    launch_kernel(scan_loop_kernel<Op, OneRow>, dim3(static_cast<unsigned>(p.rows)),
                  dim3(kScanThreads), 0, stream, overlap, p);
  } else if (p.spread) {
    launch_spread<Op, OneRow>(p, overlap, stream);
  } else if (p.rows_per_tile == 1) {
    launch_tiles<Op, OneRow>(p, overlap, stream);
  } else if (p.n % Op::kVec == 0) {
    launch_tiles<Op, ScanMode<Heads::kVector, kReverse>>(p, overlap, stream);
  } else {
    launch_tiles<Op, ScanMode<Heads::kAny, kReverse>>(p, overlap, stream);
  }
}

}  // namespace fusedops
