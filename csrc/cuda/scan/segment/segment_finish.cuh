// Segments that cross blocks: what each block left of its first and last segment is put together in
// block order.
#pragma once

#include <algorithm>

#include "csrc/cuda/scan/scan_block.cuh"
#include "csrc/cuda/scan/segment/segment_op.cuh"

namespace fusedops {

inline constexpr int kSegmentThreads = 256;

// A block holds `rows` rows.
template <class Op>
struct SegmentEnds {
  typename Op::State* head;  // (blocks, columns): of a segment that began in an earlier block
  typename Op::State* tail;  // (blocks, columns): of a segment that ends in a later block
  int64_t* segment;          // (blocks,): the segment of the tail, -1: none
  int64_t blocks, columns, rows;

  // The last block that a segment meets; offsets that name missing rows end with the blocks.
  __device__ int64_t last_block(const int64_t* offsets, int64_t s) const {
    return min(blocks - 1, (offsets[s + 1] - 1) / rows);
  }
};

// One thread block per tail, shared by columns and steps of the span.
template <class Op>
__device__ void finish_long(const SegmentEnds<Op>& p, const int64_t* offsets,
                            const SegmentOut<Op>& out, int64_t block) {
  using State = typename Op::State;
  __shared__ State part[kSegmentThreads];
  const int64_t s = p.segment[block], last = p.last_block(offsets, s);
  const int columns = static_cast<int>(min(p.columns, int64_t{kSegmentThreads}));
  const int steps = kSegmentThreads / columns, step = threadIdx.x / columns;
  const int64_t share = ceil_div(last - block, int64_t{steps});
  const int64_t begin = block + 1 + step * share, end = min(last + 1, begin + share);
  for (int64_t base = 0; base < p.columns; base += columns) {
    const int64_t column = base + threadIdx.x % columns;
    State state = Op::identity();
    if (step < steps && column < p.columns) {
#pragma unroll 8
      for (int64_t b = begin; b < end; ++b) {
        state = Op::combine(state, p.head[b * p.columns + column]);
      }
    }
    part[threadIdx.x] = state;
    __syncthreads();
    if (step == 0 && column < p.columns) {
      State total = p.tail[block * p.columns + column];
#pragma unroll 8
      for (int i = 0; i < steps; ++i) total = Op::combine(total, part[i * columns + threadIdx.x]);
      out.write(s * p.columns + column, total, offsets[s + 1] - offsets[s]);
    }
    __syncthreads();
  }
}

template <class Op>
__global__ void __launch_bounds__(kSegmentThreads)
    segment_finish_kernel(const SegmentEnds<Op> p, const int64_t* offsets,
                          const SegmentOut<Op> out) {
  wait_for_predecessor();
  if (p.segment[blockIdx.x] >= 0) finish_long(p, offsets, out, blockIdx.x);
}

// One column and many blocks: a warp per tail.
template <class Op>
__global__ void __launch_bounds__(kSegmentThreads)
    segment_finish_flat_kernel(const SegmentEnds<Op> p, const int64_t* offsets,
                               const SegmentOut<Op> out) {
  wait_for_predecessor();
  const int64_t block = (int64_t{blockIdx.x} * kSegmentThreads + threadIdx.x) / 32;
  const int64_t s = block < p.blocks ? p.segment[block] : -1;
  if (s < 0) return;
  const int lane = threadIdx.x % 32;
  const int64_t last = p.last_block(offsets, s), share = ceil_div(last - block, int64_t{32});
  const int64_t begin = block + 1 + lane * share, end = min(last + 1, begin + share);
  auto state = lane == 0 ? p.tail[block] : Op::identity();
#pragma unroll 4
  for (int64_t b = begin; b < end; ++b) state = Op::combine(state, p.head[b]);
  state = reduce_lanes<Op>(state);
  if (lane == 0) out.write(s, state, offsets[s + 1] - offsets[s]);
}

template <class Op>
void launch_segment_finish(const SegmentEnds<Op>& p, const int64_t* offsets,
                           const SegmentOut<Op>& out, bool overlap, cudaStream_t stream) {
  if (p.blocks <= 1) return;
  const bool flat = p.columns == 1;
  const int64_t blocks = flat ? ceil_div(p.blocks * 32, int64_t{kSegmentThreads}) : p.blocks;
  launch_kernel(flat ? segment_finish_flat_kernel<Op> : segment_finish_kernel<Op>,
                dim3(static_cast<unsigned>(blocks)), dim3(kSegmentThreads), 0, stream, overlap, p,
                offsets, out);
}

}  // namespace fusedops
