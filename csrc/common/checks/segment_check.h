// Checks of the segment reductions.
#pragma once

#include <optional>
#include <vector>

#include "csrc/common/checks/tensor_check.h"

namespace fusedops {

inline constexpr int64_t kSegmentKinds = 4;  // sum, mean, max, min

inline void check_offsets(const char* op, const Tensor& offsets, const char* like_name,
                          const Tensor& like) {
  FUSEDOPS_CHECK(same_device(offsets, like), op, ": offsets must be on ", device_string(like),
                 " like ", like_name, "; got ", device_string(offsets));
  FUSEDOPS_CHECK(offsets.scalar_type() == ScalarType::Long, op,
                 ": offsets must have dtype int64; got ", dtype_name(offsets.scalar_type()));
  FUSEDOPS_CHECK(offsets.dim() == 1 && offsets.size(0) >= 1, op,
                 ": offsets must have shape (S + 1,); got shape ", shape_string(offsets));
}

// The product of all sizes but the first.
inline int64_t trailing_numel(const Tensor& tensor) {
  int64_t count = 1;
  for (int64_t i = 1; i < tensor.dim(); ++i) count *= tensor.size(i);
  return count;
}

struct SegmentShape {
  DType dtype;
  int64_t rows, columns, segments;
};

inline SegmentShape check_segment_reduce(const Tensor& x,        // (E, ...)
                                         const Tensor& offsets,  // (S + 1,)
                                         int64_t kind) {
  const char* op = "segment_reduce";
  const DType dtype = check_floating(op, "x", x);
  check_min_dim(op, "x", x, 1);
  check_offsets(op, offsets, "x", x);
  FUSEDOPS_CHECK(kind >= 0 && kind < kSegmentKinds, op, ": kind must be from 0 to ",
                 kSegmentKinds - 1, "; got ", kind);
  return {dtype, x.size(0), trailing_numel(x), offsets.size(0) - 1};
}

inline SegmentShape check_segment_backward(const Tensor& dy,                    // (S, ...)
                                           const Tensor& offsets,               // (S + 1,)
                                           const std::optional<Tensor>& index,  // (S, ...)
                                           int64_t rows) {
  const char* op = "segment_reduce_backward";
  const DType dtype = check_floating(op, "dy", dy);
  check_min_dim(op, "dy", dy, 1);
  check_offsets(op, offsets, "dy", dy);
  FUSEDOPS_CHECK(dy.size(0) == offsets.size(0) - 1, op, ": dy must have ", offsets.size(0) - 1,
                 " row(s) like offsets; got shape ", shape_string(dy));
  if (index) {
    FUSEDOPS_CHECK(same_device(*index, dy) && index->scalar_type() == ScalarType::Long, op,
                   ": index must be int64 on ", device_string(dy), "; got ",
                   dtype_name(index->scalar_type()), " on ", device_string(*index));
    check_same_shape(op, "index", *index, "dy", dy);
  }
  FUSEDOPS_CHECK(rows >= 0, op, ": rows must not be negative; got ", rows);
  return {dtype, rows, trailing_numel(dy), offsets.size(0) - 1};
}

// (first, sizes of like[1:])
inline std::vector<int64_t> with_rows(int64_t first, const Tensor& like) {
  std::vector<int64_t> sizes{first};
  for (int64_t i = 1; i < like.dim(); ++i) sizes.push_back(like.size(i));
  return sizes;
}

}  // namespace fusedops
