// The gradient of norm_backward.cuh for rows of a cluster: dx of a row is stored while the next
// row's sums are on their way between the blocks, so that nobody waits for another block.
//
// A block is workers, who hold chunks of a row, and one warp more, the scout: it asks for rows and
// has the elements in front of the whole chunks and behind them, which would keep a worker, and
// with it the cluster, from the next row.
//
// Step k: sum row k and publish it; then wait for the totals of row k - 1 and store its dx.
// - Totals: four sets of slots in turn, a barrier each. Who publishes row k has had the totals of
//   row k - 2, so every warp has published that row, which is behind reading the totals of row
//   k - 4: nobody reads the set that row k goes to, and its barrier has seen the last phase end.
// - Rows: stages in turn. A worker that has stored row k arrives at its stage's barrier; the next
//   row for the stage is asked for once all have, so no copy meets a reader.
#pragma once

#include "csrc/cuda/rows/norm/norm_backward.cuh"

namespace fusedops {

inline constexpr int kTotals = 4;  // rows whose sums are on their way
// Rows in shared memory, of x and dy: as many as cover the latency of memory, which fewer than four
// did not on H200. NOTE: the bwd rows of perf/results/h200/norm.csv are with these numbers;
// `python -m fusedops bench norm --compare` says what others give.
inline constexpr int kLeastStages = 3, kMostStages = 6;
inline constexpr int kMoreStages = 3;                                     // of dresidual
inline constexpr int kClusterBarrierBytes = (kTotals + kMostStages) * 8;  // of totals, of stages
inline constexpr int kScout = 32, kClusterChunks = 3;                     // threads; of a worker

// Sums of rows between the warps of a cluster, in the slots of its RowTeam.
template <class C, int kValues>
class ClusterTotals {
 public:
  static_assert(kTotals * kValues <= 2 * kSlotValues);

  // Before any barrier of the cluster.
  __device__ __forceinline__ ClusterTotals(void* slots, unsigned barriers)
      : slots_(static_cast<C*>(slots)), barriers_(barriers) {
    if (threadIdx.x < kTotals) init_barrier(barriers_ + threadIdx.x * 8, 1);
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
    wait_for_bytes(barrier_of(k), k / kTotals & 1);
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
    return barriers_ + k % kTotals * 8;
  }
  __device__ __forceinline__ C* set_of(const RowTeam<C>& team, unsigned k) const {
    return slots_ + k % kTotals * (team.warps() * kValues);
  }
  C* slots_;
  unsigned barriers_;
};

// Behind the slots of totals: barriers, rows of x and dy, and of dresidual.
constexpr int more_ring_place(int stages, int words, int pitch) {
  return kClusterBarrierBytes + row_barrier_bytes(1, stages) + stages * words * pitch;
}
constexpr int64_t cluster_ring_bytes(int stages, int words, int more, int pitch) {
  return more_ring_place(stages, words, pitch) + row_barrier_bytes(1, kMoreStages) +
         int64_t{kMoreStages} * more * pitch;
}

// Where a row lies in a ring: its stage, and how often that has been taken before, modulo 2.
struct RingPlace {
  int stage = 0;
  unsigned round = 0;
  __device__ __forceinline__ void advance(int stages) {
    if (++stage < stages) return;
    stage = 0;
    round ^= 1;
  }
};

// RowPlaces says where a row is in both rings.
struct RowPlaces {
  RingPlace row, more;
  __device__ __forceinline__ void advance(int stages) {
    row.advance(stages);
    more.advance(kMoreStages);
  }
};

// A stage is free once every worker's warp has arrived.
class ReadStages {
 public:
  // Before any barrier of the block.
  __device__ __forceinline__ ReadStages(unsigned barriers, int stages, int workers)
      : barriers_(barriers) {
    if (static_cast<int>(threadIdx.x) < stages) {
      init_barrier(barriers_ + threadIdx.x * 8, workers / 32);
    }
    release_barrier_init();
  }
  __device__ __forceinline__ void release(const RingPlace& row) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(barriers_ + row.stage * 8);
  }
  __device__ __forceinline__ void wait(const RingPlace& row) const {
    wait_for_bytes(barriers_ + row.stage * 8, row.round);
  }

 private:
  unsigned barriers_;
};

// The rows of a team, class by class: rows that begin at the same place inside a chunk are a class.
//
// Every team takes as much of a run of the classes, which is parts of few classes; a change of
// class counts as `gap` rows. Where the number of teams is a multiple of the classes', a team takes
// every so many rows, all of one class.
struct PartRows {
  unsigned row, until, step;  // row, row + step, ... below `until`
  __device__ __forceinline__ PartRows(unsigned rows, unsigned teams, unsigned team)
      : row(team), until(rows), step(teams) {}
  // Those of class c.
  __device__ __forceinline__ PartRows(unsigned rows, unsigned teams, unsigned team,
                                      unsigned classes, unsigned c, unsigned gap)
      : step(classes) {
    const uint64_t run = rows + uint64_t{classes - 1} * gap;
    const unsigned begin = static_cast<unsigned>(run * team / teams);
    const unsigned end = static_cast<unsigned>(run * (team + 1) / teams);
    const unsigned each = rows / classes, more = rows % classes;
    const unsigned start = c * (each + gap) + min(c, more), stop = start + each + (c < more);
    const unsigned from = max(begin, start), to = min(end, stop);
    row = c + (from - start) * classes;
    until = row + (to > from ? to - from : 0) * classes;
  }
};

template <class T, class W>
inline constexpr int cluster_registers = sizeof(W) > sizeof(T) ? 168 : 128;

// What a thread of a cluster walks over rows with.
template <bool kRms, class T, class W, class S, bool kRagged>
class ClusterRows {
 public:
  using C = Compute<T>;
  static constexpr int kVec = kChunkOf<T>, kMax = kClusterChunks, kValues = kRms ? 1 : 2;
  using Slice = RowSlice<kVec, kMax, false>;
  using Sums = ColumnSums<C, kVec, kMax, kRms>;
  using Edge = EdgeElement<kRms, T, S, C>;

  // barriers: kClusterBarrierBytes, and behind them the rows.
  __device__ __forceinline__ ClusterRows(const NormBackward<T, W, S>& p, const RowLayout& layout,
                                         int stages, void* slots, uint4* barriers)
      : p_(p),
        n_(layout.n),
        inverse_n_(C{1} / static_cast<C>(layout.n)),
        stages_(stages),
        scratch_(reinterpret_cast<C*>(barriers +
                                      (kClusterBarrierBytes + row_barrier_bytes(1, stages)) / 16)),
        totals_(slots, shared_address(barriers)),
        read_(shared_address(barriers) + kTotals * 8, stages, workers()),
        team_(layout, slots, workers()),
        ring_(barriers + kClusterBarrierBytes / 16, team_, layout, kWords, stages),
        more_(barriers + more_ring_place(stages, kWords, layout.pitch) / 16, team_, layout, 1,
              kMoreStages) {}

  static __device__ __forceinline__ int workers() { return static_cast<int>(blockDim.x) - kScout; }
  static __device__ __forceinline__ bool scouts() {
    return static_cast<int>(threadIdx.x) >= workers();
  }
  __device__ __forceinline__ RowTeam<C>& team() { return team_; }

  // The rows of a part. again: sums of another part are in the partial row.
  __device__ __forceinline__ void take(const PartRows& part, RowLayout layout, bool again) {
    const int head = kRagged ? static_cast<int>(-int64_t{part.row} * n_ & (kVec - 1)) : 0;
    if constexpr (kRagged) layout.n = (n_ - head) / kVec * kVec;
    Slice slice(team_, layout);
    start(part, head, slice);
    Edge edge(team_, head, layout.n, n_);
    Sums sums;
    if (scouts()) {
      if constexpr (kRagged) edge.fetch(p_, part.row, part.until);
      if (kRagged && edge.here && p_.weight != nullptr) {
        edge.weight = to_compute(p_.weight[edge.column]);
      }
      NormParameter<W, kVec, 0> none(nullptr, slice, 1.0f);
      walk<true>(part, head, slice, none, edge, sums);
    } else {
      NormParameter<W, kVec, kMax> weight(p_.weight == nullptr ? nullptr : p_.weight + head, slice,
                                          1.0f);
      walk<false>(part, head, slice, weight, edge, sums);
    }
    if (p_.partial != nullptr) store(layout, head, slice, edge, sums, again);
  }

 private:
  static constexpr int kWords = norm_backward_words<T, S>(false);

  // Asks for the first rows of a part, whose whole chunks are behind `head` elements. All stages
  // are free.
  __device__ __forceinline__ void start(const PartRows& part, int head, const Slice& slice) {
    ring_.template clear<T>(stages_, 0, slice);
    ring_.template clear<S>(stages_, 1, slice);
    if (static_cast<int>(threadIdx.x) != workers()) return;
    RowPlaces places = places_;
#pragma unroll 1
    for (int i = 0; i < stages_; ++i, places.advance(stages_)) {
      ask(part, part.row + i * part.step, head, slice, places.row);
      if (i < kMoreStages) ask_more(part, part.row + i * part.step, head, slice, places.more);
    }
  }

  // NOTE: one step more than there are rows, for the last dx.
  template <bool kScouts, class Weight>
  __device__ __forceinline__ void walk(const PartRows& part, int head, Slice& slice, Weight& weight,
                                       Edge& edge, Sums& sums) {
    unsigned row = part.row;
    RowMoments<C> next = load_stats<kRms>(p_, row, part.until), stats{};
    RowPlaces places;
    const unsigned begin = k_;
    for (; k_ == begin || row - part.step < part.until; ++k_, row += part.step) {
      const RowMoments<C> stats_before = stats;
      const RowPlaces before = places;
      const Edge edge_before = edge;
      if (row < part.until) {
        stats = next;
        next = load_stats<kRms>(p_, row + part.step, part.until);
        places = places_;
        places_.advance(stages_);
        C value[kValues] = {};
        if constexpr (!kScouts) {
          ring_.wait(places.row.stage);
          slice.hold();
          weight.hold();
          sum_chunks<kRms, T, S>(ring_, places.row.stage, slice, weight, stats, value, sums);
        } else if constexpr (kRagged) {
          edge.take();
          edge.fetch(p_, row + part.step, part.until);
          edge.add(stats, value);
        }
        totals_.publish(team_, k_, value);
      }
      if (k_ == begin) continue;
      C value[kValues];
      totals_.take(team_, k_ - 1, value);
      const C scale = -inverse_n_ * stats_before.rstd;
      const C slope = value[0] * scale * stats_before.rstd;
      const C rest = kRms ? C{0} : value[kRms ? 0 : 1] * scale;
      T* const dx = p_.dx + int64_t{row - part.step} * n_;
      if constexpr (!kScouts) {
        if (p_.dx != nullptr) {
          slice.hold();
          weight.hold();
          const bool residual = p_.dresidual != nullptr;
          if (residual) more_.wait(before.more.stage);
          store_chunks<kRms, T, S>(ring_, before.row.stage, slice, weight, stats_before, slope,
                                   rest, residual, more_, before.more.stage, 0, dx + head);
        }
        read_.release(before.row);
      } else {
        if (kRagged && p_.dx != nullptr) edge_before.store(stats_before, slope, rest, dx);
        ask_again(part, row - part.step, head, slice, before);
      }
    }
    --k_;
  }

  // Sums of a part into the team's partial row.
  __device__ __forceinline__ void store(const RowLayout& layout, int head, const Slice& slice,
                                        const Edge& edge, const Sums& sums, bool again) {
    C* const dweight = p_.partial + team_.first() * p_.partial_pitch;
    C* const dbias = dweight + p_.partials * p_.partial_pitch;
    if constexpr (kRagged) {
      const int held = layout.chunks * team_.size() * kVec, begin = team_.rank() * held;
      const int end = min(layout.n, begin + held);
      const auto store_loose = [&](const C(&sums)[kMax][kVec], C* row) {
        store_loose_sums(sums, slice, !scouts(), begin, end, scratch_, row + head, again);
      };
      store_loose(sums.weight, dweight);
      if constexpr (!kRms) store_loose(sums.bias, dbias);
      edge.store_sums(dweight, dbias, again);
    } else if (!scouts()) {
      store_sums(sums.weight, slice, dweight);
      if constexpr (!kRms) store_sums(sums.bias, slice, dbias);
    }
  }

  __device__ __forceinline__ void ask(const PartRows& part, unsigned row, int head,
                                      const Slice& slice, const RingPlace& place) const {
    if (row >= part.until) return;
    ring_.fetch(place.stage, true, false, slice, RowStream<T>{p_.x + (row * p_.x_stride + head), 0},
                RowStream<S>{p_.dy + (row * p_.dy_stride + head), 1});
  }
  __device__ __forceinline__ void ask_more(const PartRows& part, unsigned row, int head,
                                           const Slice& slice, const RingPlace& place) const {
    if (p_.dresidual == nullptr || row >= part.until) return;
    more_.fetch(place.stage, true, false, slice,
                RowStream<T>{p_.dresidual + (row * p_.dresidual_stride + head), 0});
  }
  // Asks for the rows that take the stages of `row`, which this warp has stored.
  __device__ __forceinline__ void ask_again(const PartRows& part, unsigned row, int head,
                                            const Slice& slice, const RowPlaces& places) const {
    static_assert(kMoreStages <= kLeastStages);
    if (static_cast<int>(threadIdx.x) == workers() && row + kMoreStages * part.step < part.until) {
      read_.wait(places.row);
      ask(part, row + stages_ * part.step, head, slice, places.row);
      ask_more(part, row + kMoreStages * part.step, head, slice, places.more);
    }
    __syncwarp();
  }

  const NormBackward<T, W, S>& p_;
  int n_;
  C inverse_n_;
  int stages_;
  C* scratch_;  // of rows that have been read
  ClusterTotals<C, kValues> totals_;
  ReadStages read_;
  RowTeam<C> team_;
  RowRing<1> ring_, more_;
  unsigned k_ = 0;    // the row in work, over all parts
  RowPlaces places_;  // of that row
};

// classes, gap: see PartRows. A partial row for every team.
template <bool kRms, class T, class W, class S, bool kRagged, int kRegisters>
__global__ void __maxnreg__(kRegisters)
    norm_backward_cluster_kernel(NormBackward<T, W, S> p, RowLayout layout, int stages,
                                 unsigned classes, unsigned gap) {
  extern __shared__ uint4 shared[];
  wait_for_predecessor();
  layout.lanes = 32;
  layout.bulk = true;
  __builtin_assume(layout.cluster > 1);
  uint4* const barriers =
      shared + row_slot_bytes<Compute<T>>(layout.cluster, blockDim.x) / sizeof(uint4);
  ClusterRows<kRms, T, W, S, kRagged> walker(p, layout, stages, shared, barriers);
  const unsigned rows = static_cast<unsigned>(layout.rows);
  const unsigned teams = static_cast<unsigned>(walker.team().stride());
  const unsigned team = static_cast<unsigned>(walker.team().first());
  const bool one_class = !kRagged || teams % classes == 0;
  bool again = false;
#pragma unroll 1
  for (unsigned c = 0; c < (one_class ? 1 : classes); ++c) {
    const PartRows part =
        one_class ? PartRows(rows, teams, team) : PartRows(rows, teams, team, classes, c, gap);
    if (part.row >= part.until) continue;
    walker.take(part, layout, again);
    again = true;
    // What threads wrote goes before the next part's rows and before its sums.
    if (one_class) break;
    fence_bulk_copies();
    __syncwarp();
    cluster_sync();
  }
  walker.team().leave();
}

}  // namespace fusedops
