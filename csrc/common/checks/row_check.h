// The contracts of softmax, cross_entropy, layer_norm and rms_norm, checked once for CPU and CUDA.
#pragma once

#include <optional>

#include "csrc/common/checks/tensor_check.h"

namespace fusedops {

// ---- softmax ----

// x as (outer, n, inner): n runs over the dim that is normalised.
struct SoftmaxShape {
  int64_t outer = 1, n = 1, inner = 1;
  DType dtype;
};

inline bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

inline SoftmaxShape softmax_shape(const char* op, const Tensor& x, int64_t dim, DType dtype) {
  const int64_t dims = x.dim() > 0 ? x.dim() : 1;
  FUSEDOPS_CHECK(dim >= -dims && dim < dims, op, ": dim must be from ", -dims, " to ", dims - 1,
                 " for shape ", shape_string(x), "; got ", dim);
  SoftmaxShape shape{.dtype = dtype};
  const int64_t wanted = dim < 0 ? dim + dims : dim;
  for (int64_t i = 0; i < x.dim(); ++i) {
    (i < wanted ? shape.outer : i == wanted ? shape.n : shape.inner) *= x.size(i);
  }
  return shape;
}

inline SoftmaxShape check_softmax(const char* op, const Tensor& x, int64_t dim, bool fp32_out) {
  const DType dtype = check_floating(op, "x", x);
  FUSEDOPS_CHECK(!fp32_out || is_half(dtype), op,
                 ": fp32_out must be False for x other than float16 and bfloat16; got x of ",
                 dtype_name(x.scalar_type()));
  return softmax_shape(op, x, dim, dtype);
}

inline constexpr int64_t kNumGradDTypes = 3;

// dx has y's dtype (code 0), or is float16 (1) or bfloat16 (2) beside a float32 y.
inline DType check_grad_dtype(const char* op, int64_t code, DType y) {
  FUSEDOPS_CHECK(code >= 0 && code < kNumGradDTypes, op, ": dx_dtype must be a code from 0 to ",
                 kNumGradDTypes - 1, "; got ", code);
  FUSEDOPS_CHECK(code == 0 || y == DType::kFloat32, op,
                 ": dx_dtype must be 0 for y other than float32; got ", code);
  return code == 0 ? y : code == 1 ? DType::kFloat16 : DType::kBFloat16;
}

inline SoftmaxShape check_softmax_backward(const char* op, const Tensor& dy, const Tensor& y,
                                           int64_t dim) {
  const DType dtype = check_floating(op, "dy", dy);
  check_like(op, "y", y, "dy", dy);
  check_same_shape(op, "y", y, "dy", dy);
  return softmax_shape(op, y, dim, dtype);
}

// ---- cross_entropy ----

enum class Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

struct CrossEntropyShape {
  int64_t rows, n;
  DType dtype;
  Reduction reduction;
};

// target (M,) to the rows of a matrix.
inline void check_target(const char* op, const Tensor& target, const char* name,
                         const Tensor& rows) {
  FUSEDOPS_CHECK(same_device(target, rows), op, ": target must be on ", device_string(rows),
                 " like ", name, "; got ", device_string(target));
  FUSEDOPS_CHECK(target.scalar_type() == ScalarType::Long, op,
                 ": target must have dtype int64; got ", dtype_name(target.scalar_type()));
  FUSEDOPS_CHECK(target.dim() == 1 && target.size(0) == rows.size(0), op,
                 ": target must have shape (", rows.size(0), ",) to match ", name, " ",
                 shape_string(rows), "; got ", shape_string(target));
}

inline CrossEntropyShape check_logits(const char* op, const Tensor& logits,  // (M, V)
                                      const Tensor& target,                  // (M,)
                                      double label_smoothing, int64_t reduction, DType dtype) {
  check_dim(op, "logits", logits, 2, "(M, V)");
  FUSEDOPS_CHECK(logits.size(1) > 0, op, ": logits must have at least one class; got shape ",
                 shape_string(logits));
  check_target(op, target, "logits", logits);
  FUSEDOPS_CHECK(label_smoothing >= 0 && label_smoothing <= 1, op,
                 ": label_smoothing must be from 0 to 1; got ", label_smoothing);
  FUSEDOPS_CHECK(reduction >= 0 && reduction <= 2, op,
                 ": reduction must be a code from 0 to 2; got ", reduction);
  return {logits.size(0), logits.size(1), dtype, static_cast<Reduction>(reduction)};
}

inline CrossEntropyShape check_cross_entropy(const char* op, const Tensor& logits,
                                             const Tensor& target, double label_smoothing,
                                             int64_t reduction, bool fp32_out) {
  const DType dtype = check_floating(op, "logits", logits);
  FUSEDOPS_CHECK(!fp32_out || is_half(dtype), op,
                 ": fp32_out must be False for logits other than float16 and bfloat16; got "
                 "logits of ",
                 dtype_name(logits.scalar_type()));
  return check_logits(op, logits, target, label_smoothing, reduction, dtype);
}

// What statistics and row sums are kept in.
inline ScalarType compute_type(DType dtype) {
  return dtype == DType::kFloat64 ? ScalarType::Double : ScalarType::Float;
}

inline void check_statistic(const char* op, const char* name, const Tensor& tensor, DType dtype,
                            int64_t count) {
  FUSEDOPS_CHECK(tensor.scalar_type() == compute_type(dtype), op, ": ", name, " must have dtype ",
                 dtype_name(compute_type(dtype)), "; got ", dtype_name(tensor.scalar_type()));
  FUSEDOPS_CHECK(tensor.dim() == 1 && tensor.size(0) == count, op, ": ", name, " must have shape (",
                 count, ",); got ", shape_string(tensor));
}

// A gradient that arrives in float32 for a half tensor comes from a float32 output.
inline void check_grad_like(const char* op, const char* name, const Tensor& grad, DType dtype,
                            const char* like_name, const Tensor& like) {
  FUSEDOPS_CHECK(same_device(grad, like), op, ": ", name, " must be on ", device_string(like),
                 " like ", like_name, "; got ", device_string(grad));
  FUSEDOPS_CHECK(grad.scalar_type() == like.scalar_type() ||
                     (is_half(dtype) && grad.scalar_type() == ScalarType::Float),
                 op, ": ", name, " must have dtype ", dtype_name(like.scalar_type()), " like ",
                 like_name, is_half(dtype) ? " or float32" : "", "; got ",
                 dtype_name(grad.scalar_type()));
}

inline CrossEntropyShape check_cross_entropy_backward(const char* op, const Tensor& dloss,
                                                      const Tensor& logits, const Tensor& target,
                                                      const Tensor& lse, const Tensor& scale,
                                                      double label_smoothing, int64_t reduction) {
  check_floating(op, "dloss", dloss);
  const DType dtype = check_floating(op, "logits", logits);
  check_grad_like(op, "dloss", dloss, dtype, "logits", logits);
  const CrossEntropyShape shape =
      check_logits(op, logits, target, label_smoothing, reduction, dtype);
  const bool per_row = shape.reduction == Reduction::kNone;
  FUSEDOPS_CHECK(per_row ? dloss.dim() == 1 && dloss.size(0) == shape.rows : dloss.dim() == 0, op,
                 ": dloss must have the shape of the loss; got ", shape_string(dloss));
  check_statistic(op, "lse", lse, dtype, shape.rows);
  check_statistic(op, "scale", scale, dtype, shape.reduction == Reduction::kMean ? 1 : 0);
  return shape;
}

// ---- layer_norm, rms_norm ----

struct NormShape {
  int64_t rows = 1, n = 1;
  DType dtype;
};

inline NormShape norm_shape(const char* op, const Tensor& x, int64_t norm_dims, DType dtype) {
  check_min_dim(op, "x", x, 1);
  FUSEDOPS_CHECK(norm_dims >= 1 && norm_dims <= x.dim(), op, ": norm_dims must be from 1 to ",
                 x.dim(), " for x ", shape_string(x), "; got ", norm_dims);
  NormShape shape{.dtype = dtype};
  for (int64_t i = 0; i < x.dim(); ++i) {
    (i < x.dim() - norm_dims ? shape.rows : shape.n) *= x.size(i);
  }
  return shape;
}

// weight or bias: the shape of the normalised dims; x's dtype, or float32 beside a half x.
inline void check_norm_parameter(const char* op, const char* name, const Tensor& parameter,
                                 const Tensor& x, int64_t norm_dims, DType dtype) {
  check_grad_like(op, name, parameter, dtype, "x", x);
  bool same = parameter.dim() == norm_dims;
  for (int64_t i = 0; same && i < norm_dims; ++i) {
    same = parameter.size(i) == x.size(x.dim() - norm_dims + i);
  }
  FUSEDOPS_CHECK(same, op, ": ", name, " must have the shape of the last ", norm_dims,
                 " dimension(s) of x ", shape_string(x), "; got ", shape_string(parameter));
}

inline NormShape check_norm(const char* op, const Tensor& x, const std::optional<Tensor>& residual,
                            const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                            int64_t norm_dims, bool fp32_out) {
  const DType dtype = check_floating(op, "x", x);
  const NormShape shape = norm_shape(op, x, norm_dims, dtype);
  if (residual) {
    check_like(op, "residual", *residual, "x", x);
    check_same_shape(op, "residual", *residual, "x", x);
  }
  if (weight) check_norm_parameter(op, "weight", *weight, x, norm_dims, dtype);
  if (bias) check_norm_parameter(op, "bias", *bias, x, norm_dims, dtype);
  if (weight && bias) check_like(op, "bias", *bias, "weight", *weight);
  FUSEDOPS_CHECK(!fp32_out || is_half(dtype), op,
                 ": fp32_out must be False for x other than float16 and bfloat16; got x of ",
                 dtype_name(x.scalar_type()));
  return shape;
}

inline NormShape check_norm_backward(const char* op, const Tensor& dy,
                                     const std::optional<Tensor>& dresidual, const Tensor& x,
                                     const std::optional<Tensor>& weight,
                                     const std::optional<Tensor>& mean, const Tensor& rstd,
                                     int64_t norm_dims) {
  check_floating(op, "dy", dy);
  const DType dtype = check_floating(op, "x", x);
  check_grad_like(op, "dy", dy, dtype, "x", x);
  check_same_shape(op, "dy", dy, "x", x);
  const NormShape shape = norm_shape(op, x, norm_dims, dtype);
  if (dresidual) {
    check_like(op, "dresidual", *dresidual, "x", x);
    check_same_shape(op, "dresidual", *dresidual, "x", x);
  }
  if (weight) check_norm_parameter(op, "weight", *weight, x, norm_dims, dtype);
  if (mean) check_statistic(op, "mean", *mean, dtype, shape.rows);
  check_statistic(op, "rstd", rstd, dtype, shape.rows);
  return shape;
}

}  // namespace fusedops
