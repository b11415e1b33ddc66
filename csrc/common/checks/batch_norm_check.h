// The contract of batch norm over the rows of (..., C), checked once for CPU and CUDA.
#pragma once

#include <optional>

#include "csrc/common/checks/linear_check.h"
#include "csrc/common/checks/row_check.h"

namespace fusedops {

struct BatchNormShape {
  int64_t rows, channels;
  DType dtype;
};

// The vectors that a norm is made of, (C,) each.
struct NormVectors {
  const std::optional<Tensor>& mean;
  const std::optional<Tensor>& var;
  const std::optional<Tensor>& weight;
  const std::optional<Tensor>& bias;
};

// A vector (C,) of x's dtype, or float32 beside a half x.
inline void check_channels(const char* op, const char* name, const std::optional<Tensor>& vector,
                           const Tensor& x, DType dtype) {
  if (!vector) return;
  check_grad_like(op, name, *vector, dtype, "x", x);
  const int64_t channels = x.size(x.dim() - 1);
  FUSEDOPS_CHECK(vector->dim() == 1 && vector->size(0) == channels, op, ": ", name,
                 " must have shape (", channels, ",) to match x ", shape_string(x), "; got ",
                 shape_string(*vector));
}

inline void check_running(const char* op, const char* name, const std::optional<Tensor>& vector,
                          const Tensor& x, DType dtype) {
  check_channels(op, name, vector, x, dtype);
  FUSEDOPS_CHECK(!vector || vector->is_contiguous(), op, ": ", name,
                 " must be contiguous, since it is written; got another stride");
}

inline void check_rows_like(const char* op, const char* name, const std::optional<Tensor>& tensor,
                            const char* like_name, const Tensor& like) {
  if (!tensor) return;
  check_like(op, name, *tensor, like_name, like);
  check_same_shape(op, name, *tensor, like_name, like);
}

inline BatchNormShape check_batch_norm_statistics(const char* op, const Tensor& x,
                                                  const std::optional<Tensor>& shift,
                                                  const std::optional<Tensor>& running_mean,
                                                  const std::optional<Tensor>& running_var) {
  const DType dtype = check_floating(op, "x", x);
  check_min_dim(op, "x", x, 1);
  check_channels(op, "shift", shift, x, dtype);
  check_running(op, "running_mean", running_mean, x, dtype);
  check_running(op, "running_var", running_var, x, dtype);
  return {leading_numel(x), x.size(x.dim() - 1), dtype};
}

inline void check_norm_vectors(const char* op, const NormVectors& norm, const Tensor& x,
                               DType dtype) {
  check_channels(op, "mean", norm.mean, x, dtype);
  check_channels(op, "var", norm.var, x, dtype);
  check_channels(op, "weight", norm.weight, x, dtype);
  check_channels(op, "bias", norm.bias, x, dtype);
}

inline BatchNormShape check_batch_norm_apply(const char* op, const Tensor& x,
                                             const NormVectors& norm,
                                             const std::optional<Tensor>& residual,
                                             int64_t activation) {
  check_activation(op, activation);
  const DType dtype = check_floating(op, "x", x);
  check_min_dim(op, "x", x, 1);
  check_norm_vectors(op, norm, x, dtype);
  check_rows_like(op, "residual", residual, "x", x);
  return {leading_numel(x), x.size(x.dim() - 1), dtype};
}

inline BatchNormShape check_batch_norm_backward(const char* op, const Tensor& dy, const Tensor& x,
                                                const NormVectors& norm,
                                                const std::optional<Tensor>& saved,
                                                int64_t activation) {
  check_activation(op, activation);
  const DType dtype = check_floating(op, "dy", dy);
  check_min_dim(op, "dy", dy, 1);
  check_like(op, "x", x, "dy", dy);
  check_same_shape(op, "x", x, "dy", dy);
  check_norm_vectors(op, norm, x, dtype);
  check_rows_like(op, "saved", saved, "dy", dy);
  return {leading_numel(x), x.size(x.dim() - 1), dtype};
}

// A vector (O,) of the dtype of weight (O, K), or float32 beside a half one.
inline void check_outputs(const char* op, const char* name, const std::optional<Tensor>& vector,
                          const Tensor& weight, DType dtype) {
  if (!vector) return;
  check_grad_like(op, name, *vector, dtype, "weight", weight);
  FUSEDOPS_CHECK(vector->dim() == 1 && vector->size(0) == weight.size(0), op, ": ", name,
                 " must have shape (", weight.size(0), ",) to match weight ", shape_string(weight),
                 "; got ", shape_string(*vector));
}

inline DType check_batch_norm_fold(const char* op, const Tensor& weight,
                                   const std::optional<Tensor>& conv_bias,
                                   const NormVectors& norm) {
  const DType dtype = check_floating(op, "weight", weight);
  check_dim(op, "weight", weight, 2, "(O, K)");
  check_outputs(op, "conv_bias", conv_bias, weight, dtype);
  check_outputs(op, "mean", norm.mean, weight, dtype);
  check_outputs(op, "var", norm.var, weight, dtype);
  check_outputs(op, "bn_weight", norm.weight, weight, dtype);
  check_outputs(op, "bias", norm.bias, weight, dtype);
  return dtype;
}

// sums (2, C) and count (), in float32 (float64).
inline void check_batch_norm_sums(const char* op, const std::optional<Tensor>& sums,
                                  const std::optional<Tensor>& count, const Tensor& x) {
  const ScalarType wide = wide_dtype(x);
  const auto check = [&](const char* name, const Tensor& tensor, bool fits, auto... shape) {
    FUSEDOPS_CHECK(same_device(tensor, x), op, ": ", name, " must be on ", device_string(x),
                   " like x; got ", device_string(tensor));
    FUSEDOPS_CHECK(tensor.scalar_type() == wide, op, ": ", name, " must have dtype ",
                   dtype_name(wide), "; got ", dtype_name(tensor.scalar_type()));
    FUSEDOPS_CHECK(fits, op, ": ", name, " must have shape ", shape..., "; got ",
                   shape_string(tensor));
  };
  const int64_t channels = x.size(x.dim() - 1);
  if (sums) {
    const bool fits = sums->dim() == 2 && sums->size(0) == 2 && sums->size(1) == channels;
    check("sums", *sums, fits, "(2, ", channels, ")");
  }
  if (count) check("count", *count, count->dim() == 0, "()");
}

}  // namespace fusedops
