// segment_reduce and its backward on CUDA.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/scan/segment/segment.h"
#include "csrc/cuda/scan/segment/segment_backward.cuh"

namespace fusedops::cuda {
namespace {

using SegmentFn = int64_t (*)(const Segments&, cudaStream_t);
constexpr SegmentFn kSegments[] = {segment_sum, segment_sum, segment_max, segment_min};

// Rows may be apart, the elements of a row may not.
bool rows_are_dense(const Tensor& x) {
  int64_t expected = 1;
  for (int64_t i = x.dim() - 1; i > 0; --i) {
    if (x.size(i) != 1 && x.stride(i) != expected) return false;
    expected *= x.size(i);
  }
  return true;
}

std::tuple<Tensor, Tensor> segment_reduce(const Tensor& x,        // (E, ...)
                                          const Tensor& offsets,  // (S + 1,)
                                          int64_t kind) {
  // Guard
  const LaunchScope scope("segment_reduce", x);

  // Checks
  const SegmentShape shape = check_segment_reduce(x, offsets, kind);
  const bool indexed = kind >= 2;

  // Allocate
  const auto sizes = with_rows(shape.segments, x);
  const Tensor y = new_dense(x, sizes);
  const Tensor index = new_dense(x, indexed ? sizes : std::vector<int64_t>{0}, ScalarType::Long);

  // Empty early return
  if (y.numel() == 0) return {y, index};

  // Config
  const Tensor input = rows_are_dense(x) ? x : dense(x);
  const Tensor ends = dense(offsets);
  Segments segments{.shape = shape,
                    .x = input.const_data_ptr(),
                    .x_stride = shape.rows > 1 ? input.stride(0) : shape.columns,
                    .offsets = static_cast<const int64_t*>(ends.const_data_ptr()),
                    .y = y.mutable_data_ptr(),
                    .index = indexed ? static_cast<int64_t*>(index.mutable_data_ptr()) : nullptr,
                    .mean = kind == 1,
                    .sm_count = scope.facts().sm_count,
                    .overlap = scope.context().overlap};
  const int64_t bytes = kSegments[kind](segments, scope.stream());
  const Tensor workspace = new_dense(x, {1 + bytes / 8}, ScalarType::Long);
  segments.workspace = workspace.mutable_data_ptr();

  // Launch
  kSegments[kind](segments, scope.stream());

  // Launch check
  check_launch("segment_reduce");
  return {y, index};
}

Tensor segment_reduce_backward(const Tensor& dy,                    // (S, ...)
                               const Tensor& offsets,               // (S + 1,)
                               const std::optional<Tensor>& index,  // (S, ...), or none
                               int64_t rows, bool mean) {
  // Guard
  const LaunchScope scope("segment_reduce_backward", dy);

  // Checks
  const SegmentShape shape = check_segment_backward(dy, offsets, index, rows);

  // Allocate
  const Tensor dx = new_dense(dy, with_rows(rows, dy));

  // Empty early return
  if (dx.numel() == 0) return dx;

  // Config
  const Tensor grad = dense(dy), ends = dense(offsets);
  const std::optional<Tensor> chosen = dense(index);
  const int64_t per_block =
      std::max<int64_t>(kSpreadRows, 8 * kSpreadThreads / std::max<int64_t>(1, shape.columns));
  const int64_t blocks = ceil_div(rows, per_block);
  const Tensor first = new_dense(dy, {blocks + 1}, ScalarType::Long);

  // Launch
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    constexpr int kVec = 16 / sizeof(T);
    const SegmentSpread<T> p{
        .dy = static_cast<const T*>(grad.const_data_ptr()),
        .index = chosen ? static_cast<const int64_t*>(chosen->const_data_ptr()) : nullptr,
        .offsets = static_cast<const int64_t*>(ends.const_data_ptr()),
        .dx = static_cast<T*>(dx.mutable_data_ptr()),
        .rows = rows,
        .columns = shape.columns,
        .segments = shape.segments,
        .rows_per_block = static_cast<int>(per_block),
        .mean = mean};
    auto* const found = static_cast<int64_t*>(first.mutable_data_ptr());
    const bool vector = shape.columns % kVec == 0 && reinterpret_cast<uintptr_t>(p.dy) % 16 == 0;
    const bool overlap = scope.context().overlap;
    vector ? launch_segment_spread<T, kVec>(p, blocks, found, overlap, scope.stream())
           : launch_segment_spread<T, 1>(p, blocks, found, overlap, scope.stream());
  });

  // Launch check
  check_launch("segment_reduce_backward");
  return dx;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("segment_reduce", FUSEDOPS_BOX(&segment_reduce));
  m.impl("segment_reduce_backward", FUSEDOPS_BOX(&segment_reduce_backward));
}

}  // namespace fusedops::cuda
