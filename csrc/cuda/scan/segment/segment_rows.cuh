// Segment reduction of features (rows, columns): work is shared by rows, not by segments, so that a
// segment of a million rows costs what a million segments of one row cost.
//
// A unit of lanes walks a run of rows, one vector of columns per lane, and
// writes every segment that lies within the run. What crosses a run's ends becomes a head or a tail
// partial; units of a block are merged in shared memory, blocks by a second launch, in row order.
#pragma once

#include <algorithm>

#include "csrc/cuda/scan/segment/segment_finish.cuh"

namespace fusedops {

inline constexpr int kSegmentAhead = 4;  // rows of a lane that are on their way

template <class Op>
inline constexpr int kSegmentBlocks = sizeof(typename Op::Narrow::State) > 4 ? 3 : 4;  // per SM

template <class Op>
struct SegmentRows {
  using State = typename Op::State;
  const typename Op::In* x;  // (rows, columns), row stride x_stride
  SegmentOut<Op> out;        // (segments, columns)
  const int64_t* offsets;    // (segments + 1,)
  int64_t rows, columns, x_stride, segments;
  int lanes;  // of a unit
  int64_t rows_per_unit;
  int64_t blocks, column_blocks;
  const int64_t* first;  // (units of all blocks,): the segment of a unit's first row
  SegmentEnds<Op> ends;  // of blocks

  __host__ __device__ int units() const { return kSegmentThreads / lanes; }
  __device__ int64_t end_of(int64_t s) const {
    return s < 0 ? offsets[0] : s < segments ? offsets[s + 1] : rows + 1;
  }
  __device__ int64_t length(int64_t s) const { return offsets[s + 1] - offsets[s]; }
  __device__ bool is_segment(int64_t s) const { return s >= 0 && s < segments; }
};

// What a unit leaves for its block.
struct UnitEnds {
  bool head;     // its first segment began before it ...
  bool through;  // ... and does not end in it
  int64_t head_segment;
  int64_t tail_segment;  // -1: none
};

// States within a block count rows from its first.
template <class Op, int kVec>
struct SegmentShared {
  typename Op::Narrow::State head[kSegmentThreads * kVec];
  typename Op::Narrow::State tail[kSegmentThreads * kVec];
  UnitEnds ends[kSegmentThreads];
};

template <class Op, int kVec>
using UnitState = typename Op::Narrow::State[kVec];

template <class Op, int kVec>
__device__ __forceinline__ void clear(UnitState<Op, kVec>& state) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) state[i] = Op::Narrow::identity();
}

template <class Op, int kVec>
__device__ __forceinline__ void write_segment(const SegmentRows<Op>& p, int64_t segment,
                                              int64_t length, int64_t column, int64_t base,
                                              const UnitState<Op, kVec>& state) {
  if (column >= p.columns) return;
  const int64_t at = segment * p.columns + column;
  Vec<typename Op::In, kVec> y;
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    y.value[i] = p.out.value(Op::Narrow::widen(state[i], base), length);
  }
  store_whole(p.out.y + at, y);
  if constexpr (Op::kIndexed) {
    Vec<int64_t, kVec> index;
#pragma unroll
    for (int i = 0; i < kVec; ++i) index.value[i] = Op::Narrow::widen(state[i], base).index;
    store_whole(p.out.index + at, index);
  }
}

template <class Op, int kVec>
__device__ __forceinline__ void keep(typename Op::Narrow::State* to,
                                     const UnitState<Op, kVec>& state) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) to[i] = state[i];
}

// Leaves a state for other blocks to read.
template <class Op, int kVec>
__device__ __forceinline__ void leave(typename Op::State* to, const UnitState<Op, kVec>& state,
                                      int64_t base) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) to[i] = Op::Narrow::widen(state[i], base);
}

// Segments in order; where the next one ends is known ahead, so that no row waits for it.
template <class Op>
struct SegmentCursor {
  const SegmentRows<Op>& p;
  int64_t s, start, stop, following;

  __device__ SegmentCursor(const SegmentRows<Op>& p, int64_t s) : p(p) { move(s); }
  __device__ void move(int64_t to) {
    s = to;
    start = p.is_segment(s) ? p.offsets[s] : 0;
    stop = p.end_of(s);
    following = p.end_of(s + 1);
  }
  // Goes on to the segment of row `stop`.
  __device__ void advance() {
    const int64_t row = stop;
    start = stop;
    stop = following;
    following = p.end_of(++s + 1);
    // An empty segment, maybe many
    if (stop == row) move(find_segment(p.offsets, s, p.segments, row));
  }
};

// Walks rows [begin, end), the first of which lies in segment s.
template <class Op, int kVec>
__device__ __forceinline__ UnitEnds walk_rows(const SegmentRows<Op>& p, int64_t begin, int64_t end,
                                              int64_t s, int64_t column, int64_t base,
                                              typename Op::Narrow::State* head,
                                              typename Op::Narrow::State* tail) {
  using In = Vec<typename Op::In, kVec>;
  const bool active = column < p.columns;
  SegmentCursor<Op> at(p, s);
  const bool began_before = p.is_segment(s) && at.start < begin;
  UnitEnds ends{began_before, began_before, s, -1};
  UnitState<Op, kVec> state;
  clear<Op, kVec>(state);
  const auto finish = [&] {  // segment at.s ends here
    if (ends.through) {
      keep<Op, kVec>(head, state);
      ends.through = false;
    } else if (p.is_segment(at.s)) {
      write_segment<Op, kVec>(p, at.s, at.stop - at.start, column, base, state);
    }
  };
  // NOTE: rows are counted from `begin` in 32 bits; a unit has far fewer.
  const int rows = static_cast<int>(max(end - begin, int64_t{0}));
  const auto stop_row = [&] { return static_cast<int>(min(at.stop - begin, int64_t{rows} + 1)); };
  int stop = stop_row();
  const int from_base = static_cast<int>(begin - base);
  const auto* from = p.x + begin * p.x_stride + column;
  for (int row = 0; row < rows; row += kSegmentAhead) {
    Packed<In> in[kSegmentAhead];
#pragma unroll
    for (int j = 0; j < kSegmentAhead; ++j, from += p.x_stride) {
      if (active && row + j < rows) in[j] = *reinterpret_cast<const Packed<In>*>(from);
    }
#pragma unroll
    for (int j = 0; j < kSegmentAhead; ++j) {
      if (row + j >= rows) break;
      if (row + j == stop) {
        finish();
        clear<Op, kVec>(state);
        at.advance();
        stop = stop_row();
      }
      const auto v = unpack(in[j]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        state[i] = Op::Narrow::add(state[i], v.value[i], from_base + row + j);
      }
    }
  }
  if (stop == rows && rows > 0) {
    finish();
  } else if (ends.through) {
    keep<Op, kVec>(head, state);
  } else if (p.is_segment(at.s) && rows > 0) {
    keep<Op, kVec>(tail, state);
    ends.tail_segment = at.s;
  }
  return ends;
}

// One unit merges the ends of all units of the block, in order.
template <class Op, int kVec>
__device__ void merge_units(const SegmentRows<Op>& p, const SegmentShared<Op, kVec>& shared,
                            int lane, int64_t block, int64_t column, int64_t base) {
  UnitState<Op, kVec> state;
  clear<Op, kVec>(state);
  bool from_before = shared.ends[0].head;
  int64_t open = -1;  // a segment that began in this block
  for (int u = 0; u < p.units(); ++u) {
    const UnitEnds& ends = shared.ends[u];
    const int at = (u * p.lanes + lane) * kVec;
    if (ends.head) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        state[i] = Op::Narrow::combine(state[i], shared.head[at + i]);
      }
      if (!ends.through) {
        if (from_before) {
          if (column < p.columns)
            leave<Op, kVec>(p.ends.head + block * p.columns + column, state, base);
        } else {
          write_segment<Op, kVec>(p, ends.head_segment, p.length(ends.head_segment), column, base,
                                  state);
        }
        from_before = false;
        open = -1;
      }
    }
    if (ends.tail_segment >= 0) {
      keep<Op, kVec>(state, *reinterpret_cast<const UnitState<Op, kVec>*>(shared.tail + at));
      open = ends.tail_segment;
    }
  }
  if (column < p.columns) {
    const int64_t place = block * p.columns + column;
    if (from_before) leave<Op, kVec>(p.ends.head + place, state, base);
    if (open >= 0) leave<Op, kVec>(p.ends.tail + place, state, base);
  }
  if (column == 0) p.ends.segment[block] = open;
}

template <class Op, int kVec>
__global__ void __launch_bounds__(kSegmentThreads, kSegmentBlocks<Op>)
    segment_rows_kernel(const SegmentRows<Op> p) {
  __shared__ SegmentShared<Op, kVec> shared;
  wait_for_predecessor();
  const int lane = threadIdx.x % p.lanes, unit = threadIdx.x / p.lanes;
  const int64_t block = blockIdx.x % p.blocks;
  const int64_t column = (blockIdx.x / p.blocks * p.lanes + lane) * kVec;
  const int64_t index = block * p.units() + unit, base = block * p.units() * p.rows_per_unit;
  const int64_t begin = min(p.rows, index * p.rows_per_unit);
  const int64_t end = min(p.rows, begin + p.rows_per_unit);
  const int at = threadIdx.x * kVec;
  const UnitEnds ends = walk_rows<Op, kVec>(p, begin, end, begin < end ? p.first[index] : -1,
                                            column, base, shared.head + at, shared.tail + at);
  if (lane == 0) shared.ends[unit] = ends;
  __syncthreads();
  if (unit == 0) merge_units<Op, kVec>(p, shared, lane, block, column, base);
}

// Empty segments: 0, and -1 for an index.
template <class Op>
__global__ void __launch_bounds__(kSegmentThreads) segment_empty_kernel(const SegmentRows<Op> p) {
  wait_for_predecessor();
  const int lane = threadIdx.x % 32;
  const int64_t warp = (int64_t{blockIdx.x} * kSegmentThreads + threadIdx.x) / 32;
  const int64_t mine = warp * 32 + lane;
  unsigned empty = __ballot_sync(0xffffffffu, mine < p.segments && p.length(mine) <= 0);
  for (; empty != 0; empty &= empty - 1) {
    const int64_t s = warp * 32 + __ffs(empty) - 1;
    for (int64_t c = lane; c < p.columns; c += 32) {
      p.out.write(s * p.columns + c, Op::identity(), 0);
    }
  }
}

// Lanes, runs and blocks. Few enough blocks that a segment that spans them all is soon added up.
template <class Op>
void plan_segment_rows(SegmentRows<Op>& p, int vec, int sm_count) {
  constexpr int kBlocksPerSm = 16, kLeastRows = 8;
  const int64_t vectors = ceil_div(p.columns, vec);
  p.lanes = 1;
  while (p.lanes < 32 && p.lanes < vectors) p.lanes *= 2;
  p.column_blocks = ceil_div(vectors, p.lanes);
  const int64_t blocks = std::max<int64_t>(1, int64_t{kBlocksPerSm} * sm_count / p.column_blocks);
  p.rows_per_unit = std::max<int64_t>(kLeastRows, ceil_div(p.rows, blocks * p.units()));
  p.blocks = ceil_div(p.rows, p.rows_per_unit * p.units());
}

template <class Op, int kVec>
void launch_segment_rows(const SegmentRows<Op>& p, int64_t* first, bool overlap,
                         cudaStream_t stream) {
  const auto empty_blocks = static_cast<unsigned>(ceil_div(p.segments, kSegmentThreads));
  launch_kernel(segment_empty_kernel<Op>, dim3(empty_blocks), dim3(kSegmentThreads), 0, stream,
                overlap, p);
  if (p.rows == 0) return;
  launch_partition(p.offsets, p.segments, p.rows, p.rows_per_unit, p.blocks * p.units(), first,
                   overlap, stream);
  const auto blocks = static_cast<unsigned>(p.blocks * p.column_blocks);
  launch_kernel(segment_rows_kernel<Op, kVec>, dim3(blocks), dim3(kSegmentThreads), 0, stream,
                overlap, p);
  launch_segment_finish(p.ends, p.offsets, p.out, overlap, stream);
}

}  // namespace fusedops
