// Segment reduction of one value per row: a segmented scan whose last values are kept.
//
// A block walks a run of tiles, data and offsets of the next one on their way. A thread holds
// neighbouring rows, which reach it through shared memory. Starts of the segments that meet a tile
// are bits in shared memory; what a segment's last row holds goes there too, where a thread per
// segment picks it up, so that results leave in order. What crosses runs is left to
// segment_finish.cuh.
#pragma once

#include "cuda/scan_block.cuh"
#include "cuda/segment_finish.cuh"

namespace fusedops {

inline constexpr int kFlatThreads = 256;
inline constexpr int kFlatWarps = kFlatThreads / 32;
inline constexpr int kFlatVectors = 4;  // per thread
inline constexpr int kFlatRuns = 4;     // per place on the GPU, which even out what they take
template <class Op>
inline constexpr int kFlatBlocks = sizeof(typename Op::Narrow::State) > 4 ? 2 : 3;  // per SM
template <class Op>
inline constexpr int kFlatItems = kFlatVectors * Op::kVec;  // neighbours of a thread
template <class Op>
inline constexpr int kFlatTile = kFlatThreads * kFlatItems<Op>;
template <class Op>
inline constexpr int kFlatOffsets = kFlatItems<Op> / 8;  // per thread, loaded ahead
template <class Op>
inline constexpr int kFlatKnown = kFlatThreads * kFlatOffsets<Op>;

template <class Op>
struct SegmentFlat {
  const typename Op::In* x;  // (rows,)
  SegmentOut<Op> out;        // (segments,)
  const int64_t* offsets;    // (segments + 1,)
  int64_t rows, segments;
  SegmentEnds<Op> ends;  // of runs
};

// States count rows from the run's first.
template <class Op>
struct FlatShared {
  using State = typename Op::Narrow::State;
  alignas(16) Packed<Vec<typename Op::In, Op::kVec>> x[kFlatThreads * kFlatVectors];
  State last[kFlatTile<Op> + kFlatThreads];  // rows that end a segment; a gap for each thread
  uint32_t starts[kFlatTile<Op> / 32 + 1];   // bits, the tile's end included
  int32_t offsets[2][kFlatKnown<Op>];        // from the tile's first row, cut off beyond its ends
  State total[kFlatWarps];
  bool head[kFlatWarps];
  int passed[2];  // offsets up to the tile's end
  int64_t first;  // segment of the run's first row

  __device__ State& last_of(int row) { return last[row + row / kFlatItems<Op>]; }
};

// The vectors of a warp's rows: loaded as they lie, read by the thread that holds their rows.
template <class Op>
struct FlatRows {
  static constexpr int kVec = Op::kVec;
  using In = Packed<Vec<typename Op::In, kVec>>;
  In in[kFlatVectors];

  __device__ void load(const SegmentFlat<Op>& p, int64_t base) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool whole =
        base + kFlatTile<Op> <= p.rows && reinterpret_cast<uintptr_t>(p.x) % sizeof(In) == 0;
    const int64_t first = base + (warp * 32 * kFlatVectors + lane) * kVec;
#pragma unroll
    for (int k = 0; k < kFlatVectors; ++k) {
      const int64_t row = first + k * 32 * kVec;
      if (whole) {
        in[k] = *reinterpret_cast<const In*>(p.x + row);
      } else {
        Vec<typename Op::In, kVec> v;
#pragma unroll
        for (int i = 0; i < kVec; ++i) v.value[i] = row + i < p.rows ? p.x[row + i] : Op::pad();
        in[k] = pack(v);
      }
    }
  }
  // Neither writes nor reads meet in a bank.
  static __device__ int place(int lane, int k) {
    return lane * kFlatVectors + (k ^ (lane / 2 % kFlatVectors));
  }
  __device__ void hand_over(FlatShared<Op>& shared) const {
    const int lane = threadIdx.x % 32;
    auto* const warp = shared.x + threadIdx.x / 32 * 32 * kFlatVectors;
#pragma unroll
    for (int k = 0; k < kFlatVectors; ++k) {
      const int vector = k * 32 + lane;
      warp[place(vector / kFlatVectors, vector % kFlatVectors)] = in[k];
    }
  }
  static __device__ In mine(const FlatShared<Op>& shared, int k) {
    const int lane = threadIdx.x % 32;
    return shared.x[threadIdx.x / 32 * 32 * kFlatVectors + place(lane, k)];
  }
};

// The segments that meet a tile begin with `low`.
template <class Op>
struct FlatOffsets {
  int64_t at[kFlatOffsets<Op>];

  __device__ void load(const SegmentFlat<Op>& p, int64_t low) {
#pragma unroll
    for (int c = 0; c < kFlatOffsets<Op>; ++c) {
      const int64_t s = low + c * kFlatThreads + threadIdx.x;
      at[c] = s <= p.segments ? p.offsets[s] : std::numeric_limits<int64_t>::max();
    }
  }
  static __device__ void mark(FlatShared<Op>& shared, int64_t row) {
    if (row < 0 || row > kFlatTile<Op>) return;
    atomicOr(shared.starts + row / 32, 1u << (row % 32));
  }
  __device__ void hand_over(FlatShared<Op>& shared, int64_t base, int turn) const {
    int passed = 0;
#pragma unroll
    for (int c = 0; c < kFlatOffsets<Op>; ++c) {
      const int64_t row = at[c] - base;
      mark(shared, row);
      shared.offsets[turn][c * kFlatThreads + threadIdx.x] =
          static_cast<int32_t>(min(max(row, int64_t{-1}), int64_t{kFlatTile<Op> + 1}));
      passed += __popc(__ballot_sync(kAllLanes, row <= kFlatTile<Op>));
    }
    if (threadIdx.x % 32 == 0) atomicAdd(shared.passed + turn, passed);
  }
};

// Reduces a thread's rows, the first of which is `row` of the run, and writes what ends among them.
// `open` is what the segment of the tile's first row holds already; it becomes that of the next
// tile's.
template <class Op>
__device__ __forceinline__ void reduce_tile(FlatShared<Op>& shared, int row,
                                            typename Op::Narrow::State& open) {
  using Narrow = typename Op::Narrow;
  using State = typename Narrow::State;
  constexpr int kItems = kFlatItems<Op>, kVec = Op::kVec;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int at = threadIdx.x * kItems, after = at + kItems;
  const unsigned heads = shared.starts[at / 32] >> (at % 32) & (kAllLanes >> (32 - kItems));
  const bool ends = shared.starts[after / 32] >> (after % 32) & 1;
  auto* const last = &shared.last_of(at);

  State state;
#pragma unroll
  for (int k = 0; k < kFlatVectors; ++k) {
    const auto v = unpack(FlatRows<Op>::mine(shared, k));
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const int item = k * kVec + i;
      const bool head = heads >> item & 1;
      if (item > 0 && head) last[item - 1] = state;
      state = item == 0 || head ? Narrow::lift(v.value[i], row + item)
                                : Narrow::add(state, v.value[i], row + item);
    }
  }
  if (ends) last[kItems - 1] = state;

  // Within the warp
  State carry[1] = {state};
  const unsigned head_lanes = __ballot_sync(kAllLanes, heads != 0);
  const int first[1] = {first_lane(head_lanes)};
  scan_lanes<Narrow>(carry, first);
  if (lane == 31) {
    shared.total[warp] = carry[0];
    shared.head[warp] = head_lanes != 0;
  }
  State before = shfl_up(carry[0], 1);
  if (lane == 0) before = Narrow::identity();
  __syncthreads();

  // Across warps
  State totals[1] = {lane < kFlatWarps ? shared.total[lane] : Narrow::identity()};
  const unsigned heads_of = __ballot_sync(kAllLanes, lane < kFlatWarps && shared.head[lane]);
  const int first_total[1] = {first_lane(heads_of)};
  scan_lanes<Narrow>(totals, first_total);
  State earlier = shfl(totals[0], (warp + 31) % 32);
  if (warp == 0) earlier = Narrow::identity();
  if ((heads_of & ((1u << warp) - 1)) == 0) earlier = Narrow::combine(open, earlier);
  const State all = shfl(totals[0], kFlatWarps - 1);
  open = heads_of != 0 ? all : Narrow::combine(open, all);
  if ((head_lanes & ((1u << lane) - 1)) == 0) before = Narrow::combine(earlier, before);
  // The first segment that ends here may have begun before
  if ((heads & 1) == 0 && (heads != 0 || ends)) {
    State& end = last[heads != 0 ? __ffs(heads) - 2 : kItems - 1];
    end = Narrow::combine(before, end);
  }
}

// A block's rows [begin, end) and the segments it has passed.
template <class Op>
struct FlatRun {
  const SegmentFlat<Op>& p;
  int64_t begin, end;
  int64_t before;  // the last segment that starts up to the tile's first row, or -1

  __device__ int64_t low() const { return max(before, int64_t{0}); }

  // The last segment that starts up to the tile's end; marks those that were not loaded ahead.
  __device__ int64_t pass(FlatShared<Op>& shared, int64_t base, int turn) const {
    int64_t passed = shared.passed[turn];
    bool more = passed == kFlatKnown<Op>;
    while (more) {
      const int64_t s = low() + passed + threadIdx.x;
      const bool here = s <= p.segments && p.offsets[s] <= base + kFlatTile<Op>;
      if (here) FlatOffsets<Op>::mark(shared, p.offsets[s] - base);
      const int count = __syncthreads_count(here);
      passed += count;
      more = count == kFlatThreads;
    }
    return low() + passed - 1;
  }

  // Segments that end in the tile, and the empty ones between its borders.
  __device__ void write(FlatShared<Op>& shared, int64_t base, int turn, int64_t next) const {
    using Narrow = typename Op::Narrow;
    const auto* const known = shared.offsets[turn];
    const int64_t first = low();
    const int64_t count = min(next, p.segments - 1) - first + 1;
    for (int64_t i = threadIdx.x; i < count; i += kFlatThreads) {
      const int64_t s = first + i;
      int from, to;
      if (i + 1 < kFlatKnown<Op>) {
        from = known[i];
        to = known[i + 1];
      } else {
        from = static_cast<int>(p.offsets[s] - base);
        to = static_cast<int>(min(p.offsets[s + 1] - base, int64_t{kFlatTile<Op> + 1}));
      }
      if (from < 0) {
        const int64_t start = p.offsets[s];
        if (to <= 0 || to > kFlatTile<Op>) {
          continue;  // ended before, or goes on
        } else if (start < begin) {
          p.ends.head[blockIdx.x] = Narrow::widen(shared.last_of(to - 1), begin);
        } else {
          p.out.write(s, Narrow::widen(shared.last_of(to - 1), begin), base + to - start);
        }
      } else if (to <= from) {
        if (s > before) p.out.write(s, Op::identity(), 0);
      } else if (to <= kFlatTile<Op>) {
        p.out.write(s, Narrow::widen(shared.last_of(to - 1), begin), to - from);
      }
    }
  }

  // The segment that goes on in the next run: a tail if it starts here, else the whole run is its
  // head. One thread.
  __device__ void leave(const typename Op::Narrow::State& open) const {
    const int64_t s = before;
    const bool is_segment = s >= 0 && s < p.segments;
    const bool goes_on = is_segment && p.offsets[s] < end && p.offsets[s + 1] > end;
    const bool starts_here = goes_on && p.offsets[s] >= begin;
    p.ends.segment[blockIdx.x] = starts_here ? s : -1;
    const auto state = Op::Narrow::widen(open, begin);
    if (starts_here) p.ends.tail[blockIdx.x] = state;
    if (goes_on && !starts_here) p.ends.head[blockIdx.x] = state;
  }
};

template <class Op>
__global__ void __launch_bounds__(kFlatThreads, kFlatBlocks<Op>)
    segment_flat_kernel(const SegmentFlat<Op> p) {
  using Narrow = typename Op::Narrow;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<FlatShared<Op>*>(memory);
  constexpr int kTile = kFlatTile<Op>;
  const auto clear_starts = [&] {
    for (int i = threadIdx.x; i < kTile / 32 + 1; i += kFlatThreads) shared.starts[i] = 0;
  };
  wait_for_predecessor();
  FlatRun<Op> run{p, blockIdx.x * p.ends.rows, min(p.rows, (blockIdx.x + 1) * p.ends.rows), -1};
  FlatRows<Op> rows;
  rows.load(p, run.begin);
  clear_starts();
  if (threadIdx.x < 2) shared.passed[threadIdx.x] = 0;
  if (threadIdx.x < 32) {
    const int64_t s = find_segment_by_warp(p.offsets, 0, p.segments, run.begin);
    if (threadIdx.x == 0) shared.first = s;
  }
  __syncthreads();
  if (blockIdx.x > 0) run.before = shared.first;
  FlatOffsets<Op> offsets;
  offsets.load(p, run.low());

  auto open = Narrow::identity();
  int turn = 0;
  for (int64_t base = run.begin; base < run.end; base += kTile, turn ^= 1) {
    rows.hand_over(shared);
    offsets.hand_over(shared, base, turn);
    if (base + kTile < run.end) rows.load(p, base + kTile);
    __syncthreads();
    const int64_t next = run.pass(shared, base, turn);
    if (base + kTile < run.end) offsets.load(p, max(next, int64_t{0}));
    reduce_tile<Op>(shared, static_cast<int>(base - run.begin) + threadIdx.x * kFlatItems<Op>,
                    open);
    clear_starts();  // behind the barrier of reduce_tile
    if (threadIdx.x == 0) shared.passed[turn] = 0;
    __syncthreads();
    run.write(shared, base, turn, next);
    run.before = next;
  }
  if (threadIdx.x == 0) run.leave(open);
}

// Runs of whole tiles.
template <class Op>
int64_t flat_rows_per_run(int64_t rows, int sm_count) {
  const int64_t tiles = ceil_div(rows, int64_t{kFlatTile<Op>});
  return ceil_div(tiles, int64_t{kFlatRuns} * kFlatBlocks<Op> * sm_count) * kFlatTile<Op>;
}

// rows > 0
template <class Op>
void launch_segment_flat(const SegmentFlat<Op>& p, bool overlap, cudaStream_t stream) {
  constexpr int kBytes = sizeof(FlatShared<Op>);
  const auto kernel = segment_flat_kernel<Op>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  launch_kernel(kernel, dim3(static_cast<unsigned>(p.ends.blocks)), dim3(kFlatThreads), kBytes,
                stream, overlap, p);
  launch_segment_finish(p.ends, p.offsets, p.out, overlap, stream);
}

}  // namespace fusedops
