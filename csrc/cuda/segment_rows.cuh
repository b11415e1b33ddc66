// Segment reduction of features (rows, columns): work is shared by rows, not by segments, so that a
// segment of a million rows costs what a million segments of one row cost.
//
// A unit of lanes walks a run of rows, one vector of columns per lane, and
// writes every segment that lies within the run. What crosses a run's ends becomes a head or a tail
// partial; units of a block are merged in shared memory, blocks by a second launch, in row order.
#pragma once

#include <algorithm>

#include "cuda/segment_finish.cuh"

namespace fusedops {

inline constexpr int kSegmentAhead = 8;  // rows of a lane that are on their way

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

template <class Op, int kVec>
struct SegmentShared {
  typename Op::State head[kSegmentThreads * kVec];
  typename Op::State tail[kSegmentThreads * kVec];
  UnitEnds ends[kSegmentThreads];
};

template <class Op, int kVec>
using UnitState = typename Op::State[kVec];

template <class Op, int kVec>
__device__ __forceinline__ void clear(UnitState<Op, kVec>& state) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) state[i] = Op::identity();
}

template <class Op, int kVec>
__device__ __forceinline__ void write_segment(const SegmentRows<Op>& p, int64_t segment,
                                              int64_t column, const UnitState<Op, kVec>& state) {
  if (column >= p.columns) return;
  const int64_t length = p.length(segment), at = segment * p.columns + column;
  Vec<typename Op::In, kVec> y;
#pragma unroll
  for (int i = 0; i < kVec; ++i) y.value[i] = p.out.value(state[i], length);
  *reinterpret_cast<decltype(y)*>(p.out.y + at) = y;
  if constexpr (Op::kIndexed) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) p.out.index[at + i] = state[i].index;
  }
}

template <class Op, int kVec>
__device__ __forceinline__ void keep(typename Op::State* to, const UnitState<Op, kVec>& state) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) to[i] = state[i];
}

// Walks rows [begin, end), the first of which lies in segment s.
template <class Op, int kVec>
__device__ __forceinline__ UnitEnds walk_rows(const SegmentRows<Op>& p, int64_t begin, int64_t end,
                                              int64_t s, int64_t column, typename Op::State* head,
                                              typename Op::State* tail) {
  using In = Vec<typename Op::In, kVec>;
  const bool active = column < p.columns;
  const bool began_before = p.is_segment(s) && p.offsets[s] < begin;
  UnitEnds ends{began_before, began_before, s, -1};
  UnitState<Op, kVec> state;
  clear<Op, kVec>(state);
  int64_t stop = p.end_of(s);
  const auto finish = [&] {  // segment s ends here
    if (ends.through) {
      keep<Op, kVec>(head, state);
      ends.through = false;
    } else if (p.is_segment(s)) {
      write_segment<Op, kVec>(p, s, column, state);
    }
  };
  for (int64_t row = begin; row < end; row += kSegmentAhead) {
    In in[kSegmentAhead];
#pragma unroll
    for (int j = 0; j < kSegmentAhead; ++j) {
      if (active && row + j < end) {
        in[j] = *reinterpret_cast<const In*>(p.x + (row + j) * p.x_stride + column);
      }
    }
#pragma unroll
    for (int j = 0; j < kSegmentAhead; ++j) {
      if (row + j >= end) break;
      if (row + j == stop) {
        finish();
        clear<Op, kVec>(state);
        stop = p.end_of(++s);
        if (stop == row + j) {  // an empty segment, maybe many
          s = find_segment(p.offsets, s, p.segments, row + j);
          stop = p.end_of(s);
        }
      }
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        state[i] = Op::combine(state[i], Op::lift(in[j].value[i], row + j));
      }
    }
  }
  if (stop == end && begin < end) {
    finish();
  } else if (ends.through) {
    keep<Op, kVec>(head, state);
  } else if (p.is_segment(s) && begin < end) {
    keep<Op, kVec>(tail, state);
    ends.tail_segment = s;
  }
  return ends;
}

// One unit merges the ends of all units of the block, in order.
template <class Op, int kVec>
__device__ void merge_units(const SegmentRows<Op>& p, const SegmentShared<Op, kVec>& shared,
                            int lane, int64_t block, int64_t column) {
  UnitState<Op, kVec> state;
  clear<Op, kVec>(state);
  bool from_before = shared.ends[0].head;
  int64_t open = -1;  // a segment that began in this block
  for (int u = 0; u < p.units(); ++u) {
    const UnitEnds& ends = shared.ends[u];
    const int at = (u * p.lanes + lane) * kVec;
    if (ends.head) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) state[i] = Op::combine(state[i], shared.head[at + i]);
      if (!ends.through) {
        if (from_before) {
          if (column < p.columns) keep<Op, kVec>(p.ends.head + block * p.columns + column, state);
        } else {
          write_segment<Op, kVec>(p, ends.head_segment, column, state);
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
    if (from_before) keep<Op, kVec>(p.ends.head + block * p.columns + column, state);
    if (open >= 0) keep<Op, kVec>(p.ends.tail + block * p.columns + column, state);
  }
  if (column == 0) p.ends.segment[block] = open;
}

template <class Op, int kVec>
__global__ void __launch_bounds__(kSegmentThreads, Op::kIndexed ? 2 : 3)
    segment_rows_kernel(const SegmentRows<Op> p) {
  __shared__ SegmentShared<Op, kVec> shared;
  const int lane = threadIdx.x % p.lanes, unit = threadIdx.x / p.lanes;
  const int64_t block = blockIdx.x % p.blocks;
  const int64_t column = (blockIdx.x / p.blocks * p.lanes + lane) * kVec;
  const int64_t index = block * p.units() + unit;
  const int64_t begin = min(p.rows, index * p.rows_per_unit);
  const int64_t end = min(p.rows, begin + p.rows_per_unit);
  const int at = threadIdx.x * kVec;
  const UnitEnds ends = walk_rows<Op, kVec>(p, begin, end, begin < end ? p.first[index] : -1,
                                            column, shared.head + at, shared.tail + at);
  if (lane == 0) shared.ends[unit] = ends;
  __syncthreads();
  if (unit == 0) merge_units<Op, kVec>(p, shared, lane, block, column);
}

// Empty segments: 0, and -1 for an index.
template <class Op>
__global__ void __launch_bounds__(kSegmentThreads) segment_empty_kernel(const SegmentRows<Op> p) {
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
void launch_segment_rows(const SegmentRows<Op>& p, int64_t* first, cudaStream_t stream) {
  const auto empty_blocks = static_cast<unsigned>(ceil_div(p.segments, kSegmentThreads));
  segment_empty_kernel<<<empty_blocks, kSegmentThreads, 0, stream>>>(p);
  if (p.rows == 0) return;
  launch_partition(p.offsets, p.segments, p.rows, p.rows_per_unit, p.blocks * p.units(), first,
                   stream);
  const auto blocks = static_cast<unsigned>(p.blocks * p.column_blocks);
  segment_rows_kernel<Op, kVec><<<blocks, kSegmentThreads, 0, stream>>>(p);
  launch_segment_finish(p.ends, p.offsets, p.out, stream);
}

}  // namespace fusedops
