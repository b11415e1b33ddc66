// Segment reduction of little data in one launch: a block for a segment and a few vectors of its
// columns, whose threads share the rows and add up in row order.
#pragma once

#include <algorithm>

#include "csrc/cuda/scan/segment/segment_op.cuh"

namespace fusedops {

inline constexpr int kSmallThreads = 256, kLeastSmallThreads = 64;
inline constexpr int64_t kSmallBytes = 64 << 10;  // of x: few whatever its shape
inline constexpr int64_t kSmallSegments = 1 << 14;
// Rows of a thread where one segment has all of them, of vectors and of elements.
inline constexpr int kSmallShare = 64, kSmallScalarShare = 128;
inline constexpr int kManySmallShare = 512;  // and where segments fill the GPU: few have as many
inline constexpr int kManySegments = 64;
inline constexpr int kSmallBlocks = 16;    // per SM
inline constexpr int kSmallPlaces = 1024;  // threads of an SM, beyond which blocks get fewer
inline constexpr int kSmallGroups = 2;     // groups of a row of an average segment

template <class Op>
struct SegmentSmall {
  const typename Op::In* x;  // (rows, columns), row stride x_stride
  SegmentOut<Op> out;        // (segments, columns)
  const int64_t* offsets;    // (segments + 1,)
  int64_t rows, columns, x_stride, segments;
  int lanes, tiles;  // vectors of a block side by side, and blocks of a segment
  int threads;       // of a block
};

template <class Op, int kVec>
__global__ void __launch_bounds__(kSmallThreads) segment_small_kernel(const SegmentSmall<Op> p) {
  using Narrow = typename Op::Narrow;
  using State = typename Narrow::State;
  using In = Packed<Vec<typename Op::In, kVec>>;
  constexpr int kAhead = 8;  // rows of a thread on their way
  __shared__ State part[kVec][kSmallThreads];
  wait_for_predecessor();
  const int64_t s = blockIdx.x, length = p.offsets[s + 1] - p.offsets[s];
  // NOTE: offsets may name missing rows
  const int64_t begin = min(max(p.offsets[s], int64_t{0}), p.rows);
  const int64_t end = min(max(p.offsets[s + 1], begin), p.rows);
  const int rows = static_cast<int>(end - begin), thread = static_cast<int>(threadIdx.x);
  const int groups = p.threads / p.lanes, group = thread / p.lanes;
  const int share = max(kAhead, (rows + groups - 1) / groups);
  const int base = min(rows, group * share), count = min(rows - base, share);
  const int busy = (rows + share - 1) / share;  // groups with rows
  const int64_t width = int64_t{p.lanes} * kVec;
  for (int64_t first = blockIdx.y * width; first < p.columns; first += p.tiles * width) {
    const int64_t column = first + thread % p.lanes * kVec;
    const bool active = group < groups && column < p.columns;
    State state[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) state[i] = Narrow::identity();
    if (active) {
      const auto* x = p.x + (begin + base) * p.x_stride + column;
      for (int row = 0; row < count; row += kAhead) {
        In in[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; ++j, x += p.x_stride) {
          if (row + j < count) in[j] = *reinterpret_cast<const In*>(x);
        }
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
          if (row + j >= count) break;
          const auto v = unpack(in[j]);
#pragma unroll
          for (int i = 0; i < kVec; ++i) {
            state[i] = Narrow::add(state[i], v.value[i], base + row + j);
          }
        }
      }
    }
    if (busy > 1) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) part[i][thread] = state[i];
      __syncthreads();
    }
    for (int d = 1; d < busy; d *= 2) {
      if (active && group % (2 * d) == 0 && group + d < busy) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          state[i] = Narrow::combine(state[i], part[i][thread + d * p.lanes]);
          part[i][thread] = state[i];
        }
      }
      __syncthreads();
    }
    if (!active || group > 0) continue;
    Vec<typename Op::In, kVec> y;
#pragma unroll
    for (int i = 0; i < kVec; ++i) y.value[i] = p.out.value(Narrow::widen(state[i], begin), length);
    store_whole(p.out.y + s * p.columns + column, y);
    if constexpr (Op::kIndexed) {
      Vec<int64_t, kVec> index;
#pragma unroll
      for (int i = 0; i < kVec; ++i) index.value[i] = Narrow::widen(state[i], begin).index;
      store_whole(p.out.index + s * p.columns + column, index);
    }
  }
}

// Lanes and tiles: few vectors to a block, so that many threads share a long segment, but no more
// blocks than the GPU soon has done. False: too much data, or too many segments.
template <class Op>
bool plan_segment_small(SegmentSmall<Op>& p, int vec, int sm_count) {
  constexpr int64_t kSize = sizeof(typename Op::In), kSector = 32;
  const int64_t vectors = ceil_div(p.columns, int64_t{vec});
  const int64_t blocks = int64_t{kSmallBlocks} * sm_count;
  const int64_t most = std::min<int64_t>(vectors, kSmallThreads);
  int64_t lanes = std::min<int64_t>(vectors, vec > 1 ? 8 : kSector / kSize);
  const auto tiles = [&] { return ceil_div(vectors, lanes); };
  while (lanes < most && p.segments * tiles() > blocks) lanes = std::min(2 * lanes, most);
  p.lanes = static_cast<int>(lanes);
  p.tiles = static_cast<int>(std::clamp<int64_t>(blocks / p.segments, 1, tiles()));
  // Many short segments are soon done by few threads each, of which many fit.
  const int64_t places = int64_t{kSmallPlaces} * sm_count / (p.segments * p.tiles);
  const int64_t useful = lanes * kSmallGroups * ceil_div(p.rows, p.segments);
  p.threads = kSmallThreads;
  while (p.threads > places && p.threads / 2 >= std::max<int64_t>(useful, kLeastSmallThreads)) {
    p.threads /= 2;
  }
  const int64_t bytes = p.rows * p.columns * kSize;
  if (bytes <= kSmallBytes && p.segments <= kSmallSegments) return true;
  const bool many =
      p.columns > 1 && p.segments >= kManySegments && p.segments * tiles() >= 2 * int64_t{sm_count};
  const int64_t share = many ? kManySmallShare : vec > 1 ? kSmallShare : kSmallScalarShare;
  return p.rows * lanes <= share * kSmallThreads && p.segments * tiles() <= blocks;
}

template <class Op, int kVec>
void launch_segment_small(const SegmentSmall<Op>& p, bool overlap, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(p.segments), static_cast<unsigned>(p.tiles));
  launch_kernel(segment_small_kernel<Op, kVec>, blocks, dim3(p.threads), 0, stream, overlap, p);
}

}  // namespace fusedops
