// From Segments to kernels, for one operator.
#pragma once

#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/scan/segment/segment.h"
#include "csrc/cuda/scan/segment/segment_flat.cuh"
#include "csrc/cuda/scan/segment/segment_rows.cuh"
#include "csrc/cuda/scan/segment/segment_small.cuh"

namespace fusedops {

// Hands out pieces of a workspace, or counts them where there is none yet.
class Workspace {
 public:
  explicit Workspace(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(int64_t count) {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + bytes_) : nullptr;
    bytes_ += round_up(count * sizeof(T), 16);
    return piece;
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* base_;
  int64_t bytes_ = 0;
};

template <class Op>
SegmentOut<Op> segment_out(const Segments& s) {
  return {static_cast<typename Op::In*>(s.y), s.index, s.mean};
}

template <class Op>
SegmentEnds<Op> take_ends(Workspace& workspace, int64_t blocks, int64_t columns, int64_t rows) {
  using State = typename Op::State;
  auto* const head = workspace.take<State>(blocks * columns);
  auto* const tail = workspace.take<State>(blocks * columns);
  return {head, tail, workspace.take<int64_t>(blocks), blocks, columns, rows};
}

// Rows can be read in whole vectors.
template <class Op>
bool takes_vectors(const typename Op::In* x, int64_t columns, int64_t x_stride) {
  return (columns | x_stride) % Op::kVec == 0 &&
         reinterpret_cast<uintptr_t>(x) % sizeof(Vec<typename Op::In, Op::kVec>) == 0;
}

template <class Op>
int64_t segment_flat(const Segments& s, cudaStream_t stream) {
  SegmentFlat<Op> p{static_cast<const typename Op::In*>(s.x), segment_out<Op>(s), s.offsets,
                    s.shape.rows, s.shape.segments};
  const int64_t rows = flat_rows_per_run<Op>(p.rows, s.sm_count);
  Workspace workspace(s.workspace);
  p.ends = take_ends<Op>(workspace, ceil_div(p.rows, rows), 1, rows);
  if (s.workspace != nullptr) launch_segment_flat(p, s.overlap, stream);
  return workspace.bytes();
}

template <class Op>
int64_t segment_rows(const Segments& s, cudaStream_t stream) {
  SegmentRows<Op> p{};
  p.x = static_cast<const typename Op::In*>(s.x);
  p.out = segment_out<Op>(s);
  p.offsets = s.offsets;
  p.rows = s.shape.rows;
  p.columns = s.shape.columns;
  p.x_stride = s.x_stride;
  p.segments = s.shape.segments;
  const bool vector = takes_vectors<Op>(p.x, p.columns, p.x_stride);
  plan_segment_rows(p, vector ? Op::kVec : 1, s.sm_count);
  Workspace workspace(s.workspace);
  auto* const first = workspace.take<int64_t>(p.blocks * p.units() + 1);
  p.first = first;
  p.ends = take_ends<Op>(workspace, p.blocks, p.columns, p.rows_per_unit * p.units());
  if (s.workspace == nullptr) return workspace.bytes();
  vector ? launch_segment_rows<Op, Op::kVec>(p, first, s.overlap, stream)
         : launch_segment_rows<Op, 1>(p, first, s.overlap, stream);
  return workspace.bytes();
}

// True: that was it.
template <class Op>
bool segment_small(const Segments& s, cudaStream_t stream) {
  SegmentSmall<Op> p{static_cast<const typename Op::In*>(s.x),
                     segment_out<Op>(s),
                     s.offsets,
                     s.shape.rows,
                     s.shape.columns,
                     s.x_stride,
                     s.shape.segments};
  const bool vector = takes_vectors<Op>(p.x, p.columns, p.x_stride);
  if (!plan_segment_small(p, vector ? Op::kVec : 1, s.sm_count)) return false;
  if (s.workspace == nullptr) return true;
  vector ? launch_segment_small<Op, Op::kVec>(p, s.overlap, stream)
         : launch_segment_small<Op, 1>(p, s.overlap, stream);
  return true;
}

template <class Op>
int64_t segment_with(const Segments& s, cudaStream_t stream) {
  if (segment_small<Op>(s, stream)) return 0;
  const bool flat = s.shape.columns == 1 && s.x_stride == 1 && s.shape.rows > 0;
  return flat ? segment_flat<Op>(s, stream) : segment_rows<Op>(s, stream);
}

}  // namespace fusedops
