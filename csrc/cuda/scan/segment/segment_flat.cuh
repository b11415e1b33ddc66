// Segment reduction of one value per row: a segmented scan whose last values are kept.
//
// A warp walks a run of tiles on its own, data and offsets of the next one on their way. A lane
// holds neighbouring rows, which reach it through shared memory; rows that end a segment are bits
// there. A tile without one is folded. In others every row leaves what its segment holds so far,
// and a lane per segment picks up that of its last row, so that results leave in order. What
// crosses runs is left to segment_finish.cuh.
#pragma once

#include "csrc/cuda/scan/scan_block.cuh"
#include "csrc/cuda/scan/segment/segment_finish.cuh"

namespace fusedops {

inline constexpr int kFlatThreads = 128;
inline constexpr int kFlatWarps = kFlatThreads / 32;
inline constexpr int kFlatVectors = 4;  // per lane
inline constexpr int kFlatRuns = 4;     // per place on the GPU, which even out what they take
template <class Op>
inline constexpr int kFlatBlocks = sizeof(typename Op::Narrow::State) > 4 ? 4 : 6;  // per SM
template <class Op>
inline constexpr int kFlatItems = kFlatVectors * Op::kVec;  // neighbours of a lane
template <class Op>
inline constexpr int kFlatTile = 32 * kFlatItems<Op>;
template <class Op>
inline constexpr int kFlatOffsets = kFlatItems<Op> / 8;  // per lane, loaded ahead
template <class Op>
inline constexpr int kFlatKnown = kFlatTile<Op> / 4;  // ends kept in shared memory

template <class Op>
struct SegmentFlat {
  const typename Op::In* x;  // (rows,)
  SegmentOut<Op> out;        // (segments,)
  const int64_t* offsets;    // (segments + 1,)
  int64_t rows, segments;
  SegmentEnds<Op> ends;  // of runs
};

// What a warp keeps in shared memory. States count rows from the run's first. NOTE: it is small,
// because L1 holds what is on its way from memory and gets what shared memory leaves.
template <class Op>
struct FlatShared {
  using State = typename Op::Narrow::State;
  // A lane's part: what the segment of each row holds up to it. The rows themselves lie at the end,
  // where a state is written once what lies there is read. An odd number of words, so that lanes
  // meet in no bank.
  static constexpr int kGap = 16 / sizeof(State);  // in states
  static constexpr int kWords = (kFlatItems<Op> + kGap) / kGap;
  uint4 lanes[32 * kWords];
  uint32_t ends[kFlatTile<Op> / 32];  // bits: rows that end a segment
  int16_t bounds[kFlatKnown<Op>];     // from the tile's first row

  __device__ uint4* rows(int lane) { return lanes + (lane + 1) * kWords - kFlatVectors; }
  __device__ uint4* states(int lane) { return lanes + lane * kWords; }
  __device__ Packed<State>& at(unsigned row) {
    return reinterpret_cast<Packed<State>*>(lanes)[row + row / kFlatItems<Op> * kGap];
  }
};

// The vectors of a warp's rows: loaded as they lie, read by the lane that holds their rows.
template <class Op>
struct FlatRows {
  static constexpr int kVec = Op::kVec;
  using In = Packed<Vec<typename Op::In, kVec>>;
  In in[kFlatVectors];

  // `left`: rows that exist
  __device__ void load(const typename Op::In* x, int left) {
    const int first = threadIdx.x % 32 * kVec;
    if (left >= kFlatTile<Op> && reinterpret_cast<uintptr_t>(x) % sizeof(In) == 0) {
      const auto* const from = reinterpret_cast<const In*>(x + first);
#pragma unroll
      for (int k = 0; k < kFlatVectors; ++k) in[k] = from[k * 32];
    } else {
#pragma unroll
      for (int k = 0; k < kFlatVectors; ++k) {
        Vec<typename Op::In, kVec> v;
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const int row = first + k * 32 * kVec + i;
          v.value[i] = row < left ? x[row] : Op::pad();
        }
        in[k] = pack(v);
      }
    }
  }
  __device__ void hand_over(FlatShared<Op>& shared) const {
    constexpr int kLanes = 32 / kFlatVectors;  // which the vectors of one load belong to
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < kFlatVectors; ++k) {
      uint4* const to = shared.rows(k * kLanes + lane / kFlatVectors);
      to[lane % kFlatVectors] = __builtin_bit_cast(uint4, in[k]);
    }
  }
  static __device__ auto mine(FlatShared<Op>& shared, int k) {
    return unpack(__builtin_bit_cast(In, shared.rows(threadIdx.x % 32)[k]));
  }
};

// A warp's rows and the segments it has passed. Bound j is offsets[j]: segment j - 1 ends there.
template <class Op>
struct FlatRun {
  using Narrow = typename Op::Narrow;
  using State = typename Narrow::State;
  static constexpr int kItems = kFlatItems<Op>, kVec = Op::kVec, kTile = kFlatTile<Op>;
  static constexpr int kKnown = kFlatKnown<Op>, kAhead = kFlatOffsets<Op>;

  const SegmentFlat<Op>& p;
  FlatShared<Op>& shared;
  int64_t run, begin;
  int rows;
  int64_t next = 0;                 // the first bound beyond the rows passed
  State open = Narrow::identity();  // of the segment that ends there
  bool before = false;              // it began before the run ...
  int start = 0;                    // ... or at this row of it
  int64_t ahead[kAhead];            // bounds from `next` on, neighbours in neighbouring lanes

  __device__ FlatRun(const SegmentFlat<Op>& p, FlatShared<Op>& shared, int64_t run)
      : p(p),
        shared(shared),
        run(run),
        begin(run * p.ends.rows),
        rows(static_cast<int>(min(p.rows - begin, p.ends.rows))) {}

  static __device__ int lane() { return threadIdx.x % 32; }

  __device__ void find_first() {
    if (run == 0) return;  // from bound 0 on: empty segments may end at the first row
    const int64_t s = find_segment_by_warp(p.offsets, 0, p.segments, begin);
    before = s >= 0 && s < p.segments && p.offsets[s] < begin;
    next = s + 1;
  }

  // Loads bounds from `next` + count on.
  __device__ void look_ahead(int count) {
    const int64_t first = next + count;
    const int left = static_cast<int>(min(p.segments + 1 - first, int64_t{32 * kAhead}));
    const int64_t* const from = p.offsets + first + lane();
#pragma unroll
    for (int c = 0; c < kAhead; ++c) {
      const bool exists = c * 32 + lane() < left;
      ahead[c] = exists ? from[c * 32] : std::numeric_limits<int64_t>::max();
    }
  }

  // Marks the rows before the tile's bounds. Returns how many bounds there are up to its end.
  __device__ int mark(int row) {
    const uint64_t limit = min(kTile, rows - row);
    int count = 0;
    const auto pass = [&](int64_t bound) {
      const int64_t to = bound - (begin + row);
      const bool here = static_cast<uint64_t>(to) <= limit;
      const int end = here ? static_cast<int>(to) : 0;
      if (count <= kKnown - 32) shared.bounds[count + lane()] = static_cast<int16_t>(end);
      const unsigned last = end - 1;
      if (end > 0) atomicOr(shared.ends + last / 32, 1u << last % 32);
      const unsigned passed = __ballot_sync(kAllLanes, here);
      count += __popc(passed);
      return passed == kAllLanes;
    };
#pragma unroll
    for (int c = 0; c < kAhead; ++c) {
      if (!pass(ahead[c])) return count;
    }
    bool more = true;
    while (more) {
      look_ahead(count);
#pragma unroll
      for (int c = 0; c < kAhead; ++c) more = pass(ahead[c]);
    }
    return count;
  }

  // Folds a tile in which no segment ends.
  __device__ void fold(int row) {
    const int at = row + lane() * kItems;
    State state;
#pragma unroll
    for (int k = 0; k < kFlatVectors; ++k) {
      const auto v = FlatRows<Op>::mine(shared, k);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const int item = k * kVec + i;
        state =
            item == 0 ? Narrow::lift(v.value[i], at) : Narrow::add(state, v.value[i], at + item);
      }
    }
    open = Narrow::combine(open, reduce_lanes<Narrow>(state));
  }

  // Scans any other tile: leaves what each row's segment holds up to it.
  __device__ void scan(int row) {
    const int first = lane() * kItems, at = row + first;
    const unsigned ends = shared.ends[first / 32] >> (first % 32) & (kAllLanes >> (32 - kItems));
    constexpr int kStateWords = kVec / FlatShared<Op>::kGap;
    struct Words {
      uint4 word[kStateWords];
    };
    State state;
#pragma unroll
    for (int k = 0; k < kFlatVectors; ++k) {
      const auto v = FlatRows<Op>::mine(shared, k);
      struct {
        State state[kVec];
      } sofar;
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const int item = k * kVec + i;
        const bool starts = item == 0 || (ends >> (item > 0 ? item - 1 : 0) & 1);
        state = starts ? Narrow::lift(v.value[i], at + item)
                       : Narrow::add(state, v.value[i], at + item);
        sofar.state[i] = state;
      }
      const auto words = __builtin_bit_cast(Words, sofar);
#pragma unroll
      for (int i = 0; i < kStateWords; ++i) {
        shared.states(lane())[k * kStateWords + i] = words.word[i];
      }
    }
    if (ends >> (kItems - 1) & 1) state = Narrow::identity();
    if (lane() == 0 && ends == 0) state = Narrow::combine(open, state);
    State carry[1] = {state};
    const int source[1] = {first_lane(__ballot_sync(kAllLanes, ends != 0))};
    scan_lanes<Narrow>(carry, source);
    State earlier = shfl_up(carry[0], 1);
    if (lane() == 0) earlier = open;
    open = shfl(carry[0], 31);
    // The first segment that ends here may have begun before
    if (ends != 0) {
      auto& end = shared.at(first + __ffs(ends) - 1);
      end = pack(Narrow::combine(earlier, unpack(end)));
    }
  }

  // The state of the segment that ends before row `to` of the tile and begins at `from` or earlier.
  __device__ auto state(int from, int to) {
    const bool any = to > max(from, 0);
    return Narrow::widen(any ? unpack(shared.at(to - 1)) : Narrow::identity(), begin);
  }

  // Writes the segments that end at the tile's `count` bounds.
  __device__ void write(int row, int count) {
    const bool skip = before || next == 0;  // no segment ends where the first one begins
    if (before && lane() == 0) {
      p.ends.head[run] = state(0, shared.bounds[0]);
    }
    before = false;
    const int known = min(count, kKnown);
#pragma unroll 1
    for (int i = skip + lane(); i < known; i += 32) {
      const int from = i > 0 ? shared.bounds[i - 1] : start - row, to = shared.bounds[i];
      p.out.write(next - 1 + i, state(from, to), to - from);
    }
    start = row + shared.bounds[known - 1];
    if (count > kKnown) write_rest(row, count);
    next += count;
  }

  // The same from bound kKnown on.
  __device__ void write_rest(int row, int count) {
    const auto bound = [&](int i) {
      const int64_t to = p.offsets[next + i] - (begin + row);
      return static_cast<int>(min(max(to, int64_t{0}), int64_t{kTile}));
    };
#pragma unroll 1
    for (int i = kKnown + lane(); i < count; i += 32) {
      const int from = bound(i - 1), to = bound(i);
      p.out.write(next - 1 + i, state(from, to), to - from);
    }
    start = row + bound(count - 1);
  }

  // The segment that goes on in the next run: a tail if it starts here, else the whole run is its
  // head. One lane.
  __device__ void leave() const {
    const int64_t s = next - 1;
    const bool goes_on = s >= 0 && s < p.segments && start < rows;
    p.ends.segment[run] = goes_on && !before ? s : -1;
    if (goes_on) (before ? p.ends.head : p.ends.tail)[run] = Narrow::widen(open, begin);
  }
};

template <class Op>
__global__ void __launch_bounds__(kFlatThreads, kFlatBlocks<Op>)
    segment_flat_kernel(const SegmentFlat<Op> p) {
  extern __shared__ __align__(16) unsigned char memory[];
  // NOTE: the shuffle tells the compiler that a warp does not part
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
  auto& shared = reinterpret_cast<FlatShared<Op>*>(memory)[warp];
  constexpr int kTile = kFlatTile<Op>;
  wait_for_predecessor();
  FlatRun<Op> run(p, shared, int64_t{blockIdx.x} * kFlatWarps + warp);
  if (run.run >= p.ends.blocks) return;
  const int lane = threadIdx.x % 32;
  const auto clear_ends = [&] {
    if (lane < kTile / 32) shared.ends[lane] = 0;
  };
  FlatRows<Op> rows;
  rows.load(p.x + run.begin, run.rows);
  clear_ends();
  __syncwarp();
  run.find_first();
  run.look_ahead(0);
  for (int row = 0; row < run.rows; row += kTile) {
    rows.hand_over(shared);
    const int left = run.rows - row - kTile;
    if (left > 0) rows.load(p.x + run.begin + row + kTile, left);
    const int count = run.mark(row);
    __syncwarp();
    if (count == 0) {
      run.fold(row);
    } else {
      if (left > 0) run.look_ahead(count);
      run.scan(row);
      __syncwarp();
      clear_ends();
      run.write(row, count);
    }
    __syncwarp();
  }
  if (lane == 0) run.leave();
}

// Runs of whole tiles.
template <class Op>
int64_t flat_rows_per_run(int64_t rows, int sm_count) {
  const int64_t tiles = ceil_div(rows, int64_t{kFlatTile<Op>});
  const int64_t runs = int64_t{kFlatRuns} * kFlatBlocks<Op> * kFlatWarps * sm_count;
  return ceil_div(tiles, runs) * kFlatTile<Op>;
}

// rows > 0
template <class Op>
void launch_segment_flat(const SegmentFlat<Op>& p, bool overlap, cudaStream_t stream) {
  constexpr int kBytes = kFlatWarps * sizeof(FlatShared<Op>);
  const auto kernel = segment_flat_kernel<Op>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const auto blocks = static_cast<unsigned>(ceil_div(p.ends.blocks, int64_t{kFlatWarps}));
  launch_kernel(kernel, dim3(blocks), dim3(kFlatThreads), kBytes, stream, overlap, p);
  launch_segment_finish(p.ends, p.offsets, p.out, overlap, stream);
}

}  // namespace fusedops
