// Segment reduction of little data in one launch: a block per segment, whose threads share its rows
// and columns and add up in row order.
#pragma once

#include <algorithm>

#include "csrc/cuda/scan/segment/segment_op.cuh"

namespace fusedops {

inline constexpr int kSmallThreads = 256;
inline constexpr int64_t kSmallBytes = 64 << 10;  // of x
inline constexpr int64_t kSmallSegments = 1 << 14;

template <class Op>
struct SegmentSmall {
  const typename Op::In* x;  // (rows, columns), row stride x_stride
  SegmentOut<Op> out;        // (segments, columns)
  const int64_t* offsets;    // (segments + 1,)
  int64_t rows, columns, x_stride, segments;
};

template <class Op>
__global__ void __launch_bounds__(kSmallThreads) segment_small_kernel(const SegmentSmall<Op> p) {
  using State = typename Op::State;
  __shared__ State part[kSmallThreads];
  wait_for_predecessor();
  const int64_t s = blockIdx.x, length = p.offsets[s + 1] - p.offsets[s];
  // NOTE: offsets may name missing rows
  const int64_t begin = min(max(p.offsets[s], int64_t{0}), p.rows);
  const int64_t end = min(max(p.offsets[s + 1], begin), p.rows);
  const int width = static_cast<int>(min(p.columns, int64_t{kSmallThreads}));
  const int groups = kSmallThreads / width, group = static_cast<int>(threadIdx.x) / width;
  const int64_t share = ceil_div(end - begin, int64_t{groups});
  const int64_t from = min(end, begin + group * share), to = min(end, from + share);
  for (int64_t base = 0; base < p.columns; base += width) {
    const int64_t column = base + static_cast<int>(threadIdx.x) % width;
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
    __syncthreads();
  }
}

template <class Op>
bool segment_is_small(const SegmentSmall<Op>& p) {
  return p.rows * p.columns * static_cast<int64_t>(sizeof(typename Op::In)) <= kSmallBytes &&
         p.segments <= kSmallSegments;
}

template <class Op>
void launch_segment_small(const SegmentSmall<Op>& p, bool overlap, cudaStream_t stream) {
  launch_kernel(segment_small_kernel<Op>, dim3(static_cast<unsigned>(p.segments)),
                dim3(kSmallThreads), 0, stream, overlap, p);
}

}  // namespace fusedops
