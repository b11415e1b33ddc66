// The gradient of norm_backward.cuh for rows of a cluster: dx of a row is stored while the next
// row's sums are on their way between the blocks, so that nobody waits for another block.
//
// Step k: sum row k and publish it; then wait for the totals of row k - 1 and store its dx.
// - Totals: four sets of slots in turn, a barrier each. Who publishes row k has had the totals of
//   row k - 2, so every warp has published that row, which is behind reading the totals of row
//   k - 4: nobody reads the set that row k goes to, and its barrier has seen the last phase end.
// - Rows: four stages in turn. A warp that has stored row k arrives at its stage's barrier; row
//   k + 4 is asked for once all have, so no copy meets a reader. Who stores row k has had its
//   totals, so every warp has stored row k - 2: no phase of such a barrier gets arrivals of the
//   next.
#pragma once

#include "cuda/norm_backward.cuh"

namespace fusedops {

inline constexpr int kClusterStages = 4;
inline constexpr int kClusterBarrierBytes = 2 * kClusterStages * 8;  // of totals, of read stages

// Sums of rows between the warps of a cluster, in the slots of its RowTeam.
template <class C, int kValues>
class ClusterTotals {
 public:
  static_assert(kClusterStages * kValues <= 2 * kSlotValues);

  // Before any barrier of the cluster.
  __device__ __forceinline__ ClusterTotals(void* slots, unsigned barriers)
      : slots_(static_cast<C*>(slots)), barriers_(barriers) {
    if (threadIdx.x < kClusterStages) init_barrier(barriers_ + threadIdx.x * 8, 1);
  }
  __device__ __forceinline__ void publish(const RowTeam<C>& team, unsigned k, C (&value)[kValues]) {
    const C mine = team.fold_lanes(value);
    const int to = team.lane() % kShare;
    C* const slot = set_of(team, k) + team.warp() * kValues + team.lane() / kShare;
    if (threadIdx.x == 0) {
      expect_bytes(barrier_of(k), team.warps() * kValues * static_cast<unsigned>(sizeof(C)));
    }
    if (to < team.cluster()) send_to_block(shared_address(slot), barrier_of(k), to, mine);
  }
  __device__ __forceinline__ void take(const RowTeam<C>& team, unsigned k, C (&value)[kValues]) {
    wait_for_bytes(barrier_of(k), k / kClusterStages & 1);
    const C* const set = set_of(team, k);
    C sum = 0;
#pragma unroll 4
    for (int w = team.lane() % kShare; w < team.warps(); w += kShare) {
      sum += set[w * kValues + team.lane() / kShare];
    }
#pragma unroll
    for (int width = kShare / 2; width > 0; width /= 2) sum += __shfl_xor_sync(~0u, sum, width);
#pragma unroll
    for (int v = 0; v < kValues; ++v) value[v] = __shfl_sync(~0u, sum, v * kShare);
  }

 private:
  static constexpr int kShare = 32 / kValues;  // lanes of a value
  static_assert(kShare >= kRowCluster);
  __device__ __forceinline__ unsigned barrier_of(unsigned k) const {
    return barriers_ + k % kClusterStages * 8;
  }
  __device__ __forceinline__ C* set_of(const RowTeam<C>& team, unsigned k) const {
    return slots_ + k % kClusterStages * (team.warps() * kValues);
  }
  C* slots_;
  unsigned barriers_;
};

// A stage is free once every warp of the block has arrived.
class ReadStages {
 public:
  // Before any barrier of the block.
  __device__ __forceinline__ explicit ReadStages(unsigned barriers) : barriers_(barriers) {
    if (threadIdx.x < kClusterStages) {
      init_barrier(barriers_ + threadIdx.x * 8, static_cast<int>(blockDim.x) / 32);
    }
  }
  __device__ __forceinline__ void release(unsigned k) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(barriers_ + k % kClusterStages * 8);
  }
  __device__ __forceinline__ void wait(unsigned k) const {
    wait_for_bytes(barriers_ + k % kClusterStages * 8, k / kClusterStages & 1);
  }

 private:
  unsigned barriers_;
};

// Rows row, row + step, ... below `until`: a part of a team's rows.
//
// Rows that begin at the same place inside a chunk are a class; class by class, every team takes as
// many rows in a run, which are parts of few classes. Where all rows begin at a chunk, a team takes
// every so many.
struct PartRows {
  unsigned row, until, step;
  __device__ __forceinline__ PartRows(unsigned rows, unsigned classes, unsigned teams,
                                      unsigned team, unsigned part) {
    const int64_t begin = int64_t{rows} * team / teams, end = int64_t{rows} * (team + 1) / teams;
    const unsigned each = rows / classes, more = rows % classes;  // rows of a class
    const auto start = [&](unsigned c) { return int64_t{c} * each + min(c, more); };
    unsigned c = 0;
    while (start(c + 1) <= begin) ++c;
    c = min(c + part, classes);
    const int64_t from = max(begin, start(c)), to = c < classes ? min(end, start(c + 1)) : from;
    row = static_cast<unsigned>(c + (from - start(c)) * classes);
    until = row + (to > from ? static_cast<unsigned>(to - from) : 0) * classes;
    step = classes;
  }
  __device__ __forceinline__ PartRows(unsigned rows, unsigned teams, unsigned team)
      : row(team), until(rows), step(teams) {}
};

using ClusterStep = NormStep<2, true, 128>;

// classes: see PartRows. A partial row for each part of every team.
template <bool kRms, class T, class W, class S, bool kRagged>
__global__ void __maxnreg__(ClusterStep::kRegisters)
    norm_backward_cluster_kernel(NormBackward<T, W, S> p, RowLayout layout, int classes) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>, kMax = ClusterStep::kChunks, kValues = kRms ? 1 : 2;
  extern __shared__ uint4 shared[];
  wait_for_predecessor();
  layout.lanes = 32;
  layout.bulk = true;
  __builtin_assume(layout.cluster > 1);
  uint4* const behind = shared + row_slot_bytes<C>(layout.cluster, blockDim.x) / 16;
  ClusterTotals<C, kValues> totals(shared, shared_address(behind));
  const ReadStages read(shared_address(behind) + kClusterStages * 8);
  fence_barrier_init();
  RowTeam<C> team(layout, shared);
  RowRing<1> ring(behind + kClusterBarrierBytes / 16, team, layout,
                  norm_backward_words<T, S>(p.dresidual != nullptr), kClusterStages);
  const unsigned rows = static_cast<unsigned>(layout.rows);
  const unsigned teams = static_cast<unsigned>(team.stride());
  const unsigned first = static_cast<unsigned>(team.first());
  const unsigned parts = kRagged ? p.partials / teams : 1;
  const int n = layout.n;
  const C inverse_n = C{1} / static_cast<C>(n);
  unsigned k = 0;  // the row in work, over all parts
#pragma unroll 1
  for (unsigned part = 0; part < parts; ++part) {
    auto [row, until, step] =
        kRagged ? PartRows(rows, classes, teams, first, part) : PartRows(rows, teams, first);
    const int head = kRagged ? static_cast<int>(-int64_t{row} * n & (kVec - 1)) : 0;
    if constexpr (kRagged) layout.n = (n - head) / kVec * kVec;
    RowSlice<kVec, kMax, false> slice(team, layout);
    const auto fetch = [&](int64_t row, unsigned k) {
      if (threadIdx.x != 0 || row >= until) return;
      if (k >= kClusterStages) read.wait(k - kClusterStages);
      const int stage = static_cast<int>(k % kClusterStages);
      const RowStream<T> x{p.x + (row * p.x_stride + head), 0};
      const RowStream<S> dy{p.dy + (row * p.dy_stride + head), 1};
      if (p.dresidual == nullptr) {
        ring.fetch(stage, true, false, slice, x, dy);
      } else {
        constexpr int kPlace = 1 + sizeof(S) / sizeof(T);
        ring.fetch(stage, true, false, slice, x, dy,
                   RowStream<T>{p.dresidual + (row * p.dresidual_stride + head), kPlace});
      }
    };
#pragma unroll 1
    for (unsigned i = 0; i < kClusterStages; ++i) fetch(row + i * step, k + i);

    NormParameter<W, kVec, kMax> weight(p.weight == nullptr ? nullptr : p.weight + head, slice,
                                        1.0f);
    EdgeElement<kRms, T, S, C> edge(team, head, layout.n, n);
    if constexpr (kRagged) edge.fetch(p, row, until);
    if (kRagged && edge.here && p.weight != nullptr) {
      edge.weight = to_compute(p.weight[edge.column]);
    }
    ColumnSums<C, kVec, kMax, kRms> sums;
    RowMoments<C> next = load_stats<kRms>(p, row, until), stats{};
    // NOTE: one step more than there are rows, for the last dx.
    const unsigned begin = k;
    for (; k == begin || row - step < until; ++k, row += step) {
      const RowMoments<C> before = stats;
      const EdgeElement<kRms, T, S, C> edge_before = edge;
      if (row < until) {
        stats = next;
        next = load_stats<kRms>(p, row + step, until);
        if constexpr (kRagged) {
          edge.take();
          edge.fetch(p, row + step, until);
        }
        const int stage = static_cast<int>(k % kClusterStages);
        ring.wait(stage);
        slice.hold();
        hold(weight.value);
        C value[kValues] = {};
        sum_chunks<kRms, T, S>(ring, stage, slice, weight, stats, value, sums);
        if constexpr (kRagged) edge.add(stats, value);
        totals.publish(team, k, value);
      }
      if (k == begin) continue;
      C value[kValues];
      totals.take(team, k - 1, value);
      if (k - begin > 1) fetch(row + 2 * step, k + 2);
      if (p.dx != nullptr) {
        slice.hold();
        hold(weight.value);
        const C scale = -inverse_n * before.rstd, slope = value[0] * scale * before.rstd;
        const C rest = kRms ? C{0} : value[kRms ? 0 : 1] * scale;
        T* const dx = p.dx + int64_t{row - step} * n;
        store_chunks<kRms, T, S>(ring, static_cast<int>((k - 1) % kClusterStages), slice, weight,
                                 before, slope, rest, p.dresidual != nullptr, dx + head);
        if constexpr (kRagged) edge_before.store(before, slope, rest, dx);
      }
      read.release(k - 1);
    }
    --k;
    if (p.partial == nullptr) continue;
    C* const dweight = p.partial + (int64_t{first} * parts + part) * n;
    C* const dbias = dweight + int64_t{p.partials} * n;
    store_sums<!kRagged>(sums.weight, slice, dweight + head);
    if constexpr (!kRms) store_sums<!kRagged>(sums.bias, slice, dbias + head);
    if constexpr (kRagged) edge.store_sums(dweight, dbias);
  }
  team.leave();
}

}  // namespace fusedops
