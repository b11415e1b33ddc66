// Segment reduction of one value per row: a segmented scan whose last values are kept.
//
// Tiles and block scan are those of scan_rows.cuh. Starts of the segments that meet a tile are bits
// in shared memory; the scan goes there too, and a thread per segment picks up what its last row
// holds, so that results leave in order. A tile looks for its segments between the two that a
// partition kernel found at its borders. What crosses tiles is left to segment_finish.cuh.
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

// A state in shared memory: an index counts from the tile's first row.
template <class Op>
struct TileState {
  typename Op::State state;
  __device__ static TileState pack(const typename Op::State& s, int64_t) { return {s}; }
  __device__ typename Op::State unpack(int64_t) const { return state; }
};
template <class T, bool kMax>
struct TileState<SegmentExtreme<T, kMax>> {
  using State = typename SegmentExtreme<T, kMax>::State;
  int32_t row;
  Compute<T> value;
  __device__ static TileState pack(const State& s, int64_t base) {
    return {static_cast<int32_t>(s.index - base), s.value};
  }
  __device__ State unpack(int64_t base) const { return {base + row, value}; }
};

template <class Op>
struct SegmentFlatShared {
  alignas(16) TileState<Op> upto[kScanTile<Op>];
  uint32_t starts[kScanTile<Op> / 32];  // bits
  ScanShared<Op> scan;
};

// The segments that meet a tile, and where they lie in it.
template <class Op>
struct TileSegments {
  const SegmentFlat<Op>& p;
  int64_t tile, base, before, low, high;

  __device__ TileSegments(const SegmentFlat<Op>& p, int64_t tile)
      : p(p),
        tile(tile),
        base(tile * kScanTile<Op>),
        before(tile == 0 ? -1 : p.first[tile]),
        low(max(before, int64_t{0})),
        high(min(p.first[tile + 1], p.segments - 1)) {}

  __device__ void mark_starts(uint32_t* starts) const {
    for (int64_t s = low + threadIdx.x; s <= high; s += kScanThreads) {
      const int64_t start = p.offsets[s] - base;
      const bool empty = p.offsets[s + 1] <= p.offsets[s];
      if (!empty && start >= 0 && start < kScanTile<Op>) {
        atomicOr(starts + start / 32, 1u << (start % 32));
      }
    }
  }

  // Segments that end here, and the empty ones between the tile's borders.
  __device__ void write(const TileState<Op>* upto) const {
    for (int64_t s = low + threadIdx.x; s <= high; s += kScanThreads) {
      const int64_t start = p.offsets[s], end = p.offsets[s + 1], last = end - 1 - base;
      if (end <= start) {
        if (s > before) p.out.write(s, Op::identity(), 0);
      } else if (last >= 0 && last < kScanTile<Op>) {
        const auto state = upto[last].unpack(base);
        if (start < base) {
          p.ends.head[tile] = state;
        } else {
          p.out.write(s, state, end - start);
        }
      }
    }
  }

  // The segment that holds the tile's last row, where it goes on: a tail if it starts here, else
  // the whole tile is its head. One thread.
  __device__ void leave_ends(const typename Op::State& total) const {
    const int64_t after = base + kScanTile<Op>;
    const int64_t s = find_segment(p.offsets, low, p.first[tile + 1], min(after, p.rows) - 1);
    const bool goes_on = s >= 0 && s < p.segments && p.offsets[s + 1] > after;
    const bool starts_here = goes_on && p.offsets[s] >= base;
    p.ends.segment[tile] = starts_here ? s : -1;
    if (starts_here) p.ends.tail[tile] = total;
    if (goes_on && !starts_here) p.ends.head[tile] = total;
  }
};

template <class Op>
__global__ void __launch_bounds__(kScanThreads, kScanBlocks<Op>)
    segment_flat_kernel(const SegmentFlat<Op> p) {
  using State = typename Op::State;
  using Window = ScanWindow<Op, SegmentMode>;
  constexpr int kVec = Op::kVec;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<SegmentFlatShared<Op>*>(memory);
  const Window window(p.x, 0, p.rows, blockIdx.x);
  Packed<typename Window::In> in[kScanVectors];
  window.load(in);
  const TileSegments<Op> segments(p, blockIdx.x);
  for (int i = threadIdx.x; i < kScanTile<Op> / 32; i += kScanThreads) shared.starts[i] = 0;
  __syncthreads();
  segments.mark_starts(shared.starts);
  __syncthreads();

  // Within vectors
  unsigned heads[kScanVectors];
  bool any_head[kScanVectors];
  State upto[kScanVectors][kVec], carry[kScanVectors];
#pragma unroll
  for (int k = 0; k < kScanVectors; ++k) {
    const int at = (k * kScanThreads + static_cast<int>(threadIdx.x)) * kVec;
    heads[k] = shared.starts[at / 32] >> (at % 32) & ((1u << kVec) - 1);
    any_head[k] = heads[k] != 0;
    const auto v = unpack(in[k]);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      upto[k][i] = Op::lift(v.value[i], window.element(k) + i);
      if (i > 0 && !(heads[k] >> i & 1)) upto[k][i] = Op::combine(upto[k][i - 1], upto[k][i]);
    }
    carry[k] = upto[k][kVec - 1];
  }

  // Within the tile
  State tile_total;
  scan_block<Op, true>(shared.scan, any_head, carry, [&](const Total<State>& total) {
    tile_total = total.state;
    return Op::identity();
  });
#pragma unroll
  for (int k = 0; k < kScanVectors; ++k) {
    const int at = (k * kScanThreads + static_cast<int>(threadIdx.x)) * kVec;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const bool started = (heads[k] & ((2u << i) - 1)) != 0;
      const State s = started ? upto[k][i] : Op::combine(carry[k], upto[k][i]);
      shared.upto[at + i] = TileState<Op>::pack(s, segments.base);
    }
  }
  __syncthreads();
  segments.write(shared.upto);
  if (threadIdx.x == 0) segments.leave_ends(tile_total);
}

// rows > 0
template <class Op>
void launch_segment_flat(const SegmentFlat<Op>& p, int64_t* first, cudaStream_t stream) {
  constexpr int kBytes = sizeof(SegmentFlatShared<Op>);
  launch_partition(p.offsets, p.segments, p.rows, kScanTile<Op>, p.tiles + 1, first, stream);
  cudaFuncSetAttribute(segment_flat_kernel<Op>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       kBytes);
  segment_flat_kernel<Op><<<static_cast<unsigned>(p.tiles), kScanThreads, kBytes, stream>>>(p);
  launch_segment_finish(p.ends, p.offsets, p.out, stream);
}

}  // namespace fusedops
