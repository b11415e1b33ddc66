// The contract of the passes over rows of wide layers, which fusedops.points calls after checks of
// its own.
#pragma once

#include "csrc/cuda/points/edges/edge_check.h"

namespace fusedops {

// The sizes of y (R, C) and of what goes with it.
struct RowShape {
  int64_t rows, channels;
};

inline RowShape check_edge_rows(const char* op, const char* name, const Tensor& y) {
  check_dim(op, name, y, 2, "(R, C)");
  check_floating(op, name, y);
  FUSEDOPS_CHECK(y.element_size() == 2, op, ": ", name, " must be float16 or bfloat16; got ",
                 dtype_name(y.scalar_type()));
  const int64_t rows = y.size(0), channels = y.size(1);
  FUSEDOPS_CHECK(channels > 0 && channels % 8 == 0, op, ": ", name,
                 " must have a multiple of 8 channels; got ", shape_string(y));
  FUSEDOPS_CHECK(rows > 0 && rows <= INT32_MAX, op, ": ", name,
                 " must have 1 to 2^31 - 1 rows; got ", shape_string(y));
  return {rows, channels};
}

inline std::optional<Tensor> check_row_mask(const char* op, const std::optional<Tensor>& valid,
                                            const Tensor& y) {
  return check_edge_tensor(op, "valid", valid, y, ScalarType::Bool, {y.size(0)});
}

inline Tensor check_row_statistics(const char* op, const Tensor& stats, const Tensor& y) {
  return *check_edge_tensor(op, "stats", stats, y, ScalarType::Float, {5, y.size(1)});
}

}  // namespace fusedops
