// The gradient of norm_backward.cuh for blocks and clusters of sm_90 that walk over many rows: dx
// of a row is computed while the next row's sums are on their way between warps, so that nobody
// waits for a barrier, for the warp with a partial chunk or for another block.
//
// Step k: sum row k, publish; then take the totals of row k - 1 and store its dx. Who has published
// row k has stored row k - 2; so the totals of row k - 1 say that row k - 3 has left its stage in
// every warp, and that no block still reads the totals of row k - 3: four sets of them in turn.
#pragma once

#include "cuda/norm_backward.cuh"

namespace fusedops {

inline constexpr int kDeferredStages = 6;  // three rows in work or waited for, three on their way
inline constexpr int kTotalSets = 4;
inline constexpr int kTotalBytes = kTotalSets * 8;  // a barrier for each

// Sums of rows between the warps of a block or a cluster; in the slots of a RowTeam, which are
// 2 * kSlotValues of every warp.
template <class C, int kValues>
class RowTotals {
 public:
  static_assert(kTotalSets * kValues <= 2 * kSlotValues);

  // Before any barrier of the block and the cluster.
  __device__ __forceinline__ RowTotals(void* slots, void* barriers, int cluster)
      : slots_(static_cast<C*>(slots)), barriers_(shared_address(barriers)) {
    if (threadIdx.x < kTotalSets) {
      init_barrier(barriers_ + threadIdx.x * 8, cluster > 1 ? 1 : blockDim.x / 32);
      fence_barrier_init();
    }
  }

  __device__ __forceinline__ void publish(const RowTeam<C>& team, unsigned row,
                                          C (&value)[kValues]) {
    constexpr int kShare = 32 / kValues;
    const C mine = team.fold_lanes(value);
    const int part = team.lane() % kShare;
    const unsigned barrier = barrier_of(row);
    C* const slot = set_of(team, row) + team.warp() * kValues + team.lane() / kShare;
    if (team.cluster() == 1) {
      if (part == 0) *slot = mine;
      __syncwarp();
      if (team.lane() == 0) arrive(barrier);
      return;
    }
    if (threadIdx.x == 0) {
      expect_bytes(barrier, team.warps() * kValues * static_cast<unsigned>(sizeof(C)));
    }
#pragma unroll 1
    for (int rank = part; rank < team.cluster(); rank += kShare) {
      send_to_block(shared_address(slot), barrier, rank, mine);
    }
  }
  __device__ __forceinline__ void wait(unsigned row) const {
    wait_for_bytes(barrier_of(row), row / kTotalSets & 1);
  }
  __device__ __forceinline__ void read(const RowTeam<C>& team, unsigned row,
                                       C (&value)[kValues]) const {
    team.spread(team.template sum_set<kValues>(set_of(team, row)), value);
  }

 private:
  __device__ __forceinline__ unsigned barrier_of(unsigned row) const {
    return barriers_ + row % kTotalSets * 8;
  }
  __device__ __forceinline__ C* set_of(const RowTeam<C>& team, unsigned row) const {
    return slots_ + row % kTotalSets * (team.warps() * kValues);
  }

  C* slots_;
  unsigned barriers_;
};

using DeferredStep = NormStep<2, 1, true, 96>;

template <bool kRms, class T, class W, class S, bool kRagged>
__global__ void __maxnreg__(DeferredStep::kRegisters)
    norm_backward_deferred_kernel(NormBackward<T, W, S> p, RowLayout layout) {
  using C = Compute<T>;
  using Step = DeferredStep;
  constexpr int kVec = kChunkOf<T>, kValues = kStepValues<kRms, Step>;
  constexpr int kWords = norm_backward_words<T, S>(false);
  extern __shared__ uint4 shared[];
  wait_for_predecessor();
  layout.lanes = 32;
  layout.bulk = true;
  __builtin_assume(layout.cluster > 0);
  uint4* const behind = shared + row_slot_bytes<C>(layout.cluster, blockDim.x) / 16;
  RowTotals<C, kValues> totals(shared, behind, layout.cluster);
  RowTeam<C> team(layout, shared);
  RowSlice<kVec, Step::kChunks, kRagged> slice(team, layout);
  RowRing<1> ring(behind + kTotalBytes / 16, team, layout, kWords, kDeferredStages);

  const unsigned rows = static_cast<unsigned>(layout.rows);
  const unsigned stride = static_cast<unsigned>(team.stride());
  const unsigned first = static_cast<unsigned>(team.first());
  const auto fetch = [&](unsigned row, int stage) {
    if (row >= rows) return;
    slice.hold();
    ring.fetch(stage, true, row == rows - 1, slice, RowStream<T>{p.x + row * p.x_stride, 0},
               RowStream<S>{p.dy + row * p.dy_stride, 1});
  };
#pragma unroll 1
  for (int s = 0; s < kDeferredStages - 3; ++s) fetch(first + s * stride, s);

  NormParameter<W, kVec, Step::kChunks> weight(p.weight, slice, 1.0f);
  ColumnSums<C, kVec, Step::kChunks, kRms> sums;
  const C inverse_n = C{1} / static_cast<C>(layout.n);
  RowMoments<C> next[1] = {load_stats<kRms>(p, first, rows)}, stats[1] = {};
  int stage = 0;
  unsigned k = 0;
  // NOTE: one step more than there are rows, for the last dx.
  for (unsigned row = first; row - stride < rows || k == 0; row += stride, ++k) {
    const RowMoments<C> before = stats[0];
    stats[0] = next[0];
    if (row < rows) {
      next[0] = load_stats<kRms>(p, row + stride, rows);
      ring.wait(stage);
      slice.hold();
      hold(weight.value);
      C value[kValues] = {};
      sum_step<kRms, Step, kRagged, T, S>(ring, stage, kWords, slice, weight, stats, 1u, value,
                                          sums);
      totals.publish(team, k, value);
    }
    if (k > 0) totals.wait(k - 1);
    const int ahead = stage < 3 ? stage + kDeferredStages - 3 : stage - 3;
    fetch(row + (kDeferredStages - 3) * stride, ahead);
    const int behind_us = stage == 0 ? kDeferredStages - 1 : stage - 1;
    if (k > 0 && p.dx != nullptr) {
      const RowMoments<C> last[1] = {before};
      C value[kValues];
      totals.read(team, k - 1, value);
#pragma unroll
      for (int v = 0; v < kValues; ++v) value[v] *= -inverse_n * before.rstd;
      slice.hold();
      hold(weight.value);
      store_step<kRms, Step, kRagged, T, S>(p, ring, behind_us, kWords, slice, weight, last, 1u,
                                            value, p.dx + int64_t{row - stride} * layout.n, 0);
    }
    stage = stage + 1 == kDeferredStages ? 0 : stage + 1;
  }
  if (p.partial != nullptr) {
    const int64_t mine = int64_t{blockIdx.x} / layout.cluster;
    C* const dweight = p.partial + mine * layout.n;
    store_sums(sums.weight, slice, dweight);
    if constexpr (!kRms) store_sums(sums.bias, slice, dweight + int64_t{p.partials} * layout.n);
  }
  team.leave();
}

}  // namespace fusedops
