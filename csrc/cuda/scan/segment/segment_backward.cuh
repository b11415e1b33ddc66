// Backward of a segment reduction: row r of segment s gets dy[s] (sum), dy[s] / length (mean), or
// dy[s, c] where the saved index names r (max, min). Rows outside all segments get 0.
#pragma once

#include "csrc/cuda/scan/segment/segment_op.cuh"

namespace fusedops {

inline constexpr int kSpreadThreads = 256;
inline constexpr int kSpreadRows = 64;  // of a block: few segments to search among

template <class T>
struct SegmentSpread {
  const T* dy;             // (segments, columns)
  const int64_t* index;    // (segments, columns), or null
  const int64_t* offsets;  // (segments + 1,)
  const int64_t* first;    // (blocks + 1,): the segment of a block's first row
  T* dx;                   // (rows, columns)
  int64_t rows, columns, segments;
  int rows_per_block;
  bool mean;
};

template <class T, int kVec>
__global__ void __launch_bounds__(kSpreadThreads) segment_spread_kernel(const SegmentSpread<T> p) {
  using V = Vec<T, kVec>;
  wait_for_predecessor();
  const int64_t begin = int64_t{blockIdx.x} * p.rows_per_block;
  const int64_t end = min(p.rows, begin + p.rows_per_block);
  const int64_t low = p.first[blockIdx.x], high = p.first[blockIdx.x + 1];
  const int vectors = static_cast<int>(p.columns / kVec);
  const int64_t count = (end - begin) * vectors;
  for (int64_t i = threadIdx.x; i < count; i += kSpreadThreads) {
    const int64_t row = begin + i / vectors, column = i % vectors * kVec;
    const int64_t s = find_segment(p.offsets, max(low, int64_t{0}), high, row);
    V out{};
    if (s >= 0 && s < p.segments) {
      const int64_t at = s * p.columns + column;
      out = *reinterpret_cast<const V*>(p.dy + at);
      const int64_t length = p.mean ? p.offsets[s + 1] - p.offsets[s] : 1;
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        if (p.mean) {
          const auto share = to_compute(out.value[j]) / static_cast<Compute<T>>(length);
          out.value[j] = from_compute<T>(share);
        }
        if (p.index != nullptr && p.index[at + j] != row) out.value[j] = static_cast<T>(0.0f);
      }
    }
    store_whole(p.dx + row * p.columns + column, out);
  }
}

template <class T, int kVec>
void launch_segment_spread(SegmentSpread<T> p, int64_t blocks, int64_t* first, bool overlap,
                           cudaStream_t stream) {
  p.first = first;
  launch_partition(p.offsets, p.segments, p.rows, p.rows_per_block, blocks + 1, first, overlap,
                   stream);
  launch_kernel(segment_spread_kernel<T, kVec>, dim3(static_cast<unsigned>(blocks)),
                dim3(kSpreadThreads), 0, stream, overlap, p);
}

}  // namespace fusedops
