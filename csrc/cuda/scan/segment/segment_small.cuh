// Segment reduction of little data in one launch: blocks per segment, a part of its columns each,
// whose threads share its rows and columns and add up in row order.
#pragma once

#include <algorithm>

#include "csrc/cuda/scan/segment/segment_op.cuh"

namespace fusedops {

inline constexpr int kSmallThreads = 256;
inline constexpr int64_t kSmallBytes = 64 << 10;  // of x
inline constexpr int64_t kSmallSegments = 1 << 14;
// More data goes here as well where one segment of all rows would not take a block long.
inline constexpr int64_t kFewRows = 1024, kFewRowsBytes = 1 << 20, kFewRowsBlocks = 1 << 13;

template <class Op>
struct SegmentSmall {
  const typename Op::In* x;  // (rows, columns), row stride x_stride
  SegmentOut<Op> out;        // (segments, columns)
  const int64_t* offsets;    // (segments + 1,)
  int64_t rows, columns, x_stride, segments;
  int width;  // columns of a block

  int64_t column_blocks() const { return ceil_div(columns, int64_t{width}); }
};

template <class Op>
__global__ void __launch_bounds__(kSmallThreads) segment_small_kernel(const SegmentSmall<Op> p) {
  using State = typename Op::State;
  __shared__ State part[kSmallThreads];
  wait_for_predecessor();
  const auto segments = static_cast<unsigned>(p.segments);
  const unsigned column_block = blockIdx.x / segments;
  const int64_t s = blockIdx.x - column_block * segments, length = p.offsets[s + 1] - p.offsets[s];
  // NOTE: offsets may name missing rows
  const int64_t begin = min(max(p.offsets[s], int64_t{0}), p.rows);
  const int64_t end = min(max(p.offsets[s + 1], begin), p.rows);
  const int width = p.width;
  const int groups = kSmallThreads / width, group = static_cast<int>(threadIdx.x) / width;
  const int64_t share = ceil_div(end - begin, int64_t{groups});
  const int64_t from = min(end, begin + group * share), to = min(end, from + share);
  const int64_t column = int64_t{column_block} * width + static_cast<int>(threadIdx.x) % width;
  const bool active = group < groups && column < p.columns;
  State state = Op::identity();
  if (active) {
#pragma unroll 8
    for (int64_t row = from; row < to; ++row) {
      state = Op::add(state, p.x[row * p.x_stride + column], row);
    }
  }
  part[threadIdx.x] = state;
  __syncthreads();
  for (int d = 1; d < groups; d *= 2) {
    const bool adds = active && group % (2 * d) == 0 && group + d < groups;
    if (adds) part[threadIdx.x] = Op::combine(part[threadIdx.x], part[threadIdx.x + d * width]);
    __syncthreads();
  }
  if (active && group == 0) p.out.write(s * p.columns + column, part[threadIdx.x], length);
}

// Columns of a block: as many as keep a thread's rows below kThreadRows, down to a sector or two.
inline int small_width(int64_t rows, int64_t columns) {
  constexpr int kThreadRows = 64, kLeast = 16;
  int width = kSmallThreads;
  while (width > kLeast && rows * width > int64_t{kSmallThreads} * kThreadRows) width /= 2;
  return static_cast<int>(std::clamp<int64_t>(columns, 1, width));
}

template <class Op>
bool segment_is_small(const SegmentSmall<Op>& p) {
  const int64_t bytes = p.rows * p.columns * static_cast<int64_t>(sizeof(typename Op::In));
  if (bytes <= kSmallBytes && p.segments <= kSmallSegments) return true;
  return p.rows <= kFewRows && bytes <= kFewRowsBytes &&
         p.segments * p.column_blocks() <= kFewRowsBlocks;
}

template <class Op>
void launch_segment_small(const SegmentSmall<Op>& p, bool overlap, cudaStream_t stream) {
  launch_kernel(segment_small_kernel<Op>,
                dim3(static_cast<unsigned>(p.segments * p.column_blocks())), dim3(kSmallThreads), 0,
                stream, overlap, p);
}

}  // namespace fusedops
