// Segment reduction of one value per row: a segmented scan whose last values are kept.
//
// Tiles and block scan are those of scan_rows.cuh. Starts and ends of the segments that meet a tile
// are marked in shared memory first; a tile looks for its segments between the two that a partition
// kernel found at its borders. What crosses tiles is left to segment_finish.cuh.
#pragma once

#include "cuda/scan_rows.cuh"
#include "cuda/segment_finish.cuh"

namespace fusedops {

template <class Op>
struct SegmentFlat {
  const typename Op::In* x;  // (rows,)
  SegmentOut<Op> out;        // (segments,)
  const int64_t* offsets;    // (segments + 1,)
  int64_t rows, segments, tiles;
  const int64_t* first;  // (tiles + 1,): the segment of a tile's first row
  SegmentEnds<Op> ends;  // of tiles
};

using SegmentMode = ScanMode<Heads::kNone, false>;

inline constexpr uint32_t kStartMark = 1u << 31;  // the other bits: 1 + segment that ends here

// Also writes the empty segments between the tile's borders.
template <class Op>
__device__ __forceinline__ int64_t mark_segments(const SegmentFlat<Op>& p, int64_t tile,
                                                 uint32_t* mark) {
  constexpr int kTile = kScanTile<Op>;
  const int64_t first = tile == 0 ? -1 : p.first[tile];
  const int64_t low = max(first, int64_t{0}), high = min(p.first[tile + 1], p.segments - 1);
  const int64_t base = tile * kTile;
  for (int64_t s = low + threadIdx.x; s <= high; s += kScanThreads) {
    const int64_t start = p.offsets[s] - base, last = p.offsets[s + 1] - base - 1;
    if (last < start) {
      if (s > first) p.out.write(s, Op::identity(), 0);
      continue;
    }
    if (start >= 0 && start < kTile) atomicOr(mark + start, kStartMark);
    if (last >= 0 && last < kTile) atomicOr(mark + last, static_cast<uint32_t>(s - low + 1));
  }
  return low;
}

// The segment that holds the tile's last row, where it goes on: a tail if it starts here, else the
// whole tile is its head.
template <class Op>
__device__ void leave_ends(const SegmentFlat<Op>& p, int64_t tile,
                           const Total<typename Op::State>& total) {
  const int64_t base = tile * kScanTile<Op>, after = base + kScanTile<Op>;
  const int64_t s = find_segment(p.offsets, max(p.first[tile], int64_t{0}), p.first[tile + 1],
                                 min(after, p.rows) - 1);
  const bool goes_on = s >= 0 && s < p.segments && p.offsets[s + 1] > after;
  const bool starts_here = goes_on && p.offsets[s] >= base;
  p.ends.segment[tile] = starts_here ? s : -1;
  if (starts_here) p.ends.tail[tile] = total.state;
  if (goes_on && !starts_here) p.ends.head[tile] = total.state;
}

template <class Op>
__global__ void __launch_bounds__(kScanThreads, 3) segment_flat_kernel(const SegmentFlat<Op> p) {
  using State = typename Op::State;
  using Window = ScanWindow<Op, SegmentMode>;
  constexpr int kVec = Op::kVec;
  __shared__ __align__(16) uint32_t mark[kScanTile<Op>];
  __shared__ ScanShared<Op> shared;
  const int64_t tile = blockIdx.x;
  const Window window(p.x, 0, p.rows, tile);
  Packed<typename Window::In> in[kScanVectors];
  window.load(in);

  // Marks
  for (int i = threadIdx.x; i < kScanTile<Op>; i += kScanThreads) mark[i] = 0;
  __syncthreads();
  const int64_t low = mark_segments(p, tile, mark);
  __syncthreads();

  // Totals of vectors
  const auto mark_of = [&](int k, int i) {
    return mark[(k * kScanThreads + static_cast<int>(threadIdx.x)) * kVec + i];
  };
  bool heads[kScanVectors];
  State carry[kScanVectors];
#pragma unroll
  for (int k = 0; k < kScanVectors; ++k) {
    const auto v = unpack(in[k]);
    heads[k] = false;
    carry[k] = Op::identity();
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const bool start = (mark_of(k, i) & kStartMark) != 0;
      heads[k] = heads[k] || start;
      if (start) carry[k] = Op::identity();
      carry[k] = Op::combine(carry[k], Op::lift(v.value[i], window.element(k) + i));
    }
  }

  scan_block<Op, true>(shared, heads, carry, [&](const Total<State>& total) {
    if (threadIdx.x == 0) leave_ends(p, tile, total);
    return Op::identity();
  });

  // Segments that end here
#pragma unroll
  for (int k = 0; k < kScanVectors; ++k) {
    const auto v = unpack(in[k]);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const uint32_t m = mark_of(k, i);
      if (m & kStartMark) carry[k] = Op::identity();
      carry[k] = Op::combine(carry[k], Op::lift(v.value[i], window.element(k) + i));
      const uint32_t ends = m & ~kStartMark;
      if (ends == 0) continue;
      const int64_t s = low + ends - 1, start = p.offsets[s];
      if (start < tile * kScanTile<Op>) {
        p.ends.head[tile] = carry[k];
      } else {
        p.out.write(s, carry[k], p.offsets[s + 1] - start);
      }
    }
  }
}

// rows > 0
template <class Op>
void launch_segment_flat(const SegmentFlat<Op>& p, int64_t* first, cudaStream_t stream) {
  launch_partition(p.offsets, p.segments, p.rows, kScanTile<Op>, p.tiles + 1, first, stream);
  segment_flat_kernel<<<static_cast<unsigned>(p.tiles), kScanThreads, 0, stream>>>(p);
  launch_segment_finish(p.ends, p.offsets, p.out, stream);
}

}  // namespace fusedops
