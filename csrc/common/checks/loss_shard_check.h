// The contracts of loss_shard_parts and loss_shard_gradient_, checked once for CPU and CUDA.
#pragma once

#include "csrc/common/checks/linear_cross_entropy_check.h"

namespace fusedops {

// Rows of `pitch` elements, of which `width` are the logits of the classes from `first` on.
struct LossShardShape {
  int64_t rows, pitch, first, width, classes;
  DType dtype;
};

inline LossShardShape check_loss_shard(const char* op, const Tensor& logits,  // (M, pitch)
                                       const Tensor& target,                  // (M,)
                                       int64_t first, int64_t width, int64_t classes,
                                       const LossOptions& options) {
  const DType dtype = check_floating(op, "logits", logits);
  check_dim(op, "logits", logits, 2, "(M, pitch)");
  const int64_t rows = logits.size(0), pitch = logits.size(1);
  FUSEDOPS_CHECK(pitch * dtype_bytes(dtype) % 16 == 0, op,
                 ": logits must have rows of whole 16 bytes; got shape ", shape_string(logits));
  FUSEDOPS_CHECK(width >= 0 && width <= pitch, op, ": width must be from 0 to ", pitch,
                 " for logits ", shape_string(logits), "; got ", width);
  FUSEDOPS_CHECK(classes > 0 && classes < (int64_t{1} << 30), op,
                 ": classes must be from 1 to 2^30 - 1; got ", classes);
  FUSEDOPS_CHECK(first >= 0 && first <= classes - width, op, ": first must be from 0 to ",
                 classes - width, " for ", width, " of ", classes, " classes; got ", first);
  check_target(op, target, "logits", logits);
  check_loss_options(op, options);
  return {rows, pitch, first, width, classes, dtype};
}

// Checks the other operands of loss_shard_gradient_; says whether each row has its own factor.
inline bool check_loss_shard_gradient(const char* op, const LossShardShape& shape,
                                      const Tensor& logits,
                                      const Tensor& lse,       // (M,)
                                      const Tensor& factor) {  // (M,) or (1,)
  FUSEDOPS_CHECK(logits.is_contiguous(), op, ": logits must be contiguous; got strides (",
                 logits.stride(0), ", ", logits.stride(1), ")");
  check_statistic(op, "lse", lse, shape.dtype, shape.rows);
  const bool per_row = factor.dim() != 1 || factor.size(0) != 1;
  check_statistic(op, "factor", factor, shape.dtype, per_row ? shape.rows : 1);
  const auto check_device = [&](const char* name, const Tensor& tensor) {
    FUSEDOPS_CHECK(same_device(tensor, logits), op, ": ", name, " must be on ",
                   device_string(logits), " like logits; got ", device_string(tensor));
  };
  check_device("lse", lse);
  check_device("factor", factor);
  return per_row;
}

}  // namespace fusedops
