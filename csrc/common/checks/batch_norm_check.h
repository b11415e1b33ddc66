// The contract of batch norm over the rows of (..., C), and of depthwise convolutions with a norm
// behind, checked once for CPU and CUDA.
#pragma once

#include <optional>

#include "csrc/common/checks/linear_check.h"
#include "csrc/common/checks/row_check.h"
#include "csrc/common/depthwise.h"
#include "csrc/common/int_math.h"

namespace fusedops {

// The form in which a product hands the moments of its columns to batch norm: for each kMomentRows
// rows, the last ones fewer, means and sums of squares about them, (2, C, blocks of rows) in fp64.
inline constexpr int64_t kMomentRows = 2048;
inline int64_t moment_blocks(int64_t rows) { return ceil_div(rows, kMomentRows); }

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

inline void check_moments(const char* op, const std::optional<Tensor>& moments, const Tensor& x) {
  if (!moments) return;
  const int64_t channels = x.size(x.dim() - 1), blocks = moment_blocks(leading_numel(x));
  FUSEDOPS_CHECK(same_device(*moments, x), op, ": moments must be on ", device_string(x), "; got ",
                 device_string(*moments));
  FUSEDOPS_CHECK(moments->scalar_type() == ScalarType::Double && moments->dim() == 3 &&
                     moments->size(0) == 2 && moments->size(1) == channels &&
                     moments->size(2) == blocks,
                 op, ": moments must be a float64 tensor of shape (2, ", channels, ", ", blocks,
                 "); got ", dtype_name(moments->scalar_type()), " ", shape_string(*moments));
}

inline BatchNormShape check_batch_norm_statistics(const char* op, const Tensor& x,
                                                  const std::optional<Tensor>& moments,
                                                  const std::optional<Tensor>& shift,
                                                  const std::optional<Tensor>& running_mean,
                                                  const std::optional<Tensor>& running_var) {
  const DType dtype = check_floating(op, "x", x);
  check_min_dim(op, "x", x, 1);
  check_moments(op, moments, x);
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

// ---- depthwise convolutions ----

inline constexpr int64_t kMaxConvExtent = 1 << 24;

struct ConvGeometry {
  int64_t stride_h, stride_w, pad_h, pad_w;
};

// The sizes of x (N, H, W, C) under a kernel's taps.
inline DepthwiseShape check_conv_sizes(const char* op, const Tensor& x, const Tensor& weight,
                                       const ConvGeometry& geometry) {
  const int64_t kh = weight.size(1), kw = weight.size(2);
  FUSEDOPS_CHECK(kh > 0 && kw > 0, op, ": weight must have at least one tap; got shape ",
                 shape_string(weight));
  const auto at_least = [&](const char* name, int64_t value, int64_t least) {
    FUSEDOPS_CHECK(value >= least && value <= kMaxConvExtent, op, ": ", name, " must be from ",
                   least, " to ", kMaxConvExtent, "; got ", value);
  };
  at_least("stride_h", geometry.stride_h, 1);
  at_least("stride_w", geometry.stride_w, 1);
  at_least("pad_h", geometry.pad_h, 0);
  at_least("pad_w", geometry.pad_w, 0);
  const int64_t room_h = x.size(1) + 2 * geometry.pad_h - kh;
  const int64_t room_w = x.size(2) + 2 * geometry.pad_w - kw;
  FUSEDOPS_CHECK(room_h >= 0 && room_w >= 0, op, ": x ", shape_string(x),
                 " must be as large as weight after padding; got weight ", shape_string(weight));
  FUSEDOPS_CHECK(x.size(1) <= kMaxConvExtent && x.size(2) <= kMaxConvExtent, op, ": x ",
                 shape_string(x), " must have images of at most ", kMaxConvExtent,
                 " rows and columns");
  DepthwiseShape s;
  s.n = x.size(0), s.h = x.size(1), s.w = x.size(2), s.channels = x.size(3);
  s.kh = kh, s.kw = kw;
  s.stride_h = geometry.stride_h, s.stride_w = geometry.stride_w;
  s.pad_h = geometry.pad_h, s.pad_w = geometry.pad_w;
  s.out_h = room_h / s.stride_h + 1, s.out_w = room_w / s.stride_w + 1;
  return s;
}

inline DepthwiseShape check_depthwise_operands(const char* op,
                                               const Tensor& x,       // (N, H, W, C)
                                               const Tensor& weight,  // (C, kh, kw)
                                               const ConvGeometry& geometry) {
  check_floating(op, "x", x);
  check_like(op, "weight", weight, "x", x);
  check_dim(op, "x", x, 4, "(N, H, W, C)");
  check_dim(op, "weight", weight, 3, "(C, kh, kw)");
  FUSEDOPS_CHECK(weight.size(0) == x.size(3), op, ": weight must have shape (", x.size(3),
                 ", kh, kw) to match x ", shape_string(x), "; got ", shape_string(weight));
  return check_conv_sizes(op, x, weight, geometry);
}

// weight (O, kh, kw, C).
inline DepthwiseShape check_first_operands(const char* op, const Tensor& x, const Tensor& weight,
                                           const ConvGeometry& geometry) {
  check_floating(op, "x", x);
  check_like(op, "weight", weight, "x", x);
  check_dim(op, "x", x, 4, "(N, H, W, C)");
  check_dim(op, "weight", weight, 4, "(O, kh, kw, C)");
  FUSEDOPS_CHECK(weight.size(3) == x.size(3), op, ": weight must have shape (O, kh, kw, ",
                 x.size(3), ") to match x ", shape_string(x), "; got ", shape_string(weight));
  return check_conv_sizes(op, x, weight, geometry);
}

inline DepthwiseShape check_first_conv(const char* op, const Tensor& x, const Tensor& weight,
                                       const std::optional<Tensor>& conv_bias,
                                       const NormVectors& norm, const ConvGeometry& geometry,
                                       int64_t activation) {
  check_activation(op, activation);
  const DepthwiseShape shape = check_first_operands(op, x, weight, geometry);
  const DType dtype = check_floating(op, "x", x);
  check_outputs(op, "conv_bias", conv_bias, weight, dtype);
  check_outputs(op, "mean", norm.mean, weight, dtype);
  check_outputs(op, "var", norm.var, weight, dtype);
  check_outputs(op, "bn_weight", norm.weight, weight, dtype);
  check_outputs(op, "bias", norm.bias, weight, dtype);
  return shape;
}

// x (..., K), weight (O, K), residual (..., O).
inline LinearShape check_pointwise_conv(const char* op, const Tensor& x, const Tensor& weight,
                                        const std::optional<Tensor>& conv_bias,
                                        const NormVectors& norm,
                                        const std::optional<Tensor>& residual, int64_t activation) {
  const std::optional<Tensor> none;
  const LinearShape shape = check_linear(op, x, weight, none, activation);
  check_outputs(op, "conv_bias", conv_bias, weight, shape.dtype);
  check_outputs(op, "mean", norm.mean, weight, shape.dtype);
  check_outputs(op, "var", norm.var, weight, shape.dtype);
  check_outputs(op, "bn_weight", norm.weight, weight, shape.dtype);
  check_outputs(op, "bias", norm.bias, weight, shape.dtype);
  if (!residual) return shape;
  check_like(op, "residual", *residual, "x", x);
  bool fits = residual->dim() == x.dim() && residual->size(x.dim() - 1) == shape.n;
  for (int64_t i = 0; fits && i < x.dim() - 1; ++i) fits = residual->size(i) == x.size(i);
  FUSEDOPS_CHECK(fits, op, ": residual must have shape (..., ", shape.n, ") to match x ",
                 shape_string(x), "; got ", shape_string(*residual));
  return shape;
}

// A tensor of y's shape, like x.
inline void check_conv_result(const char* op, const char* name, const Tensor& tensor,
                              const Tensor& x, const DepthwiseShape& s, int64_t outputs) {
  check_like(op, name, tensor, "x", x);
  FUSEDOPS_CHECK(tensor.dim() == 4 && tensor.size(0) == s.n && tensor.size(1) == s.out_h &&
                     tensor.size(2) == s.out_w && tensor.size(3) == outputs,
                 op, ": ", name, " must have the result's shape (", s.n, ", ", s.out_h, ", ",
                 s.out_w, ", ", outputs, "); got ", shape_string(tensor));
}

inline DepthwiseShape check_depthwise_conv(const char* op, const Tensor& x, const Tensor& weight,
                                           const std::optional<Tensor>& conv_bias,
                                           const NormVectors& norm,
                                           const std::optional<Tensor>& residual,
                                           const ConvGeometry& geometry, int64_t activation) {
  check_activation(op, activation);
  const DepthwiseShape shape = check_depthwise_operands(op, x, weight, geometry);
  const DType dtype = check_floating(op, "x", x);
  check_channels(op, "conv_bias", conv_bias, x, dtype);
  check_channels(op, "mean", norm.mean, x, dtype);
  check_channels(op, "var", norm.var, x, dtype);
  check_channels(op, "bn_weight", norm.weight, x, dtype);
  check_channels(op, "bias", norm.bias, x, dtype);
  if (residual) check_conv_result(op, "residual", *residual, x, shape, shape.channels);
  return shape;
}

inline DepthwiseShape check_depthwise_conv_backward(const char* op, const Tensor& dy,
                                                    const Tensor& x, const Tensor& weight,
                                                    const ConvGeometry& geometry) {
  check_floating(op, "dy", dy);
  const DepthwiseShape shape = check_depthwise_operands(op, x, weight, geometry);
  check_conv_result(op, "dy", dy, x, shape, shape.channels);
  return shape;
}

inline DepthwiseShape check_first_conv_gradient(const char* op, const Tensor& dy, const Tensor& x,
                                                const Tensor& weight,
                                                const ConvGeometry& geometry) {
  check_floating(op, "dy", dy);
  const DepthwiseShape shape = check_first_operands(op, x, weight, geometry);
  check_conv_result(op, "dy", dy, x, shape, weight.size(0));
  return shape;
}

// Stride 1 and a border of 1.
inline constexpr ConvGeometry kImageGeometry{1, 1, 1, 1};

inline void check_image_weight(const char* op, const Tensor& weight) {
  FUSEDOPS_CHECK(weight.size(1) == 3 && weight.size(2) == 3, op,
                 ": weight must have shape (O, 3, 3, C); got ", shape_string(weight));
}

inline DepthwiseShape check_image_conv(const char* op, const Tensor& x, const Tensor& weight,
                                       const std::optional<Tensor>& conv_bias,
                                       const NormVectors& norm, int64_t activation) {
  const DepthwiseShape shape =
      check_first_conv(op, x, weight, conv_bias, norm, kImageGeometry, activation);
  check_image_weight(op, weight);
  return shape;
}

inline void check_image_conv_gradient(const char* op, const Tensor& dy, const Tensor& x,
                                      const Tensor& weight) {
  check_first_conv_gradient(op, dy, x, weight, kImageGeometry);
  check_image_weight(op, weight);
}

}  // namespace fusedops
