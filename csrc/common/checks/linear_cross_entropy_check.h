// The contracts of linear_cross_entropy and scale_gradient_, checked once for CPU and CUDA, and how
// many rows have their logits in memory at a time.
#pragma once

#include <algorithm>
#include <optional>

#include "csrc/common/checks/linear_check.h"
#include "csrc/common/checks/row_check.h"
#include "csrc/common/int_math.h"
#include "csrc/common/loss_options.h"

namespace fusedops {

// (m, k) @ (n, k).T: m rows, n classes.
struct LinearCrossEntropyShape {
  int64_t m, n, k;
  DType dtype;
  Reduction reduction;
  bool per_row() const { return reduction == Reduction::kNone; }
  bool mean() const { return reduction == Reduction::kMean; }
};

inline void check_loss_options(const char* op, const LossOptions& o) {
  FUSEDOPS_CHECK(o.label_smoothing >= 0 && o.label_smoothing <= 1, op,
                 ": label_smoothing must be from 0 to 1; got ", o.label_smoothing);
  FUSEDOPS_CHECK(o.softcap >= 0, op, ": softcap must be at least 0; got ", o.softcap);
  FUSEDOPS_CHECK(o.z_loss >= 0, op, ": z_loss must be at least 0; got ", o.z_loss);
}

inline LinearCrossEntropyShape check_linear_cross_entropy(
    const char* op, const Tensor& x,     // (M, K)
    const Tensor& weight,                // (V, K)
    const std::optional<Tensor>& bias,   // (V,)
    const Tensor& target,                // (M,)
    const std::optional<Tensor>& dloss,  // (M,) or ()
    const LossOptions& options, int64_t reduction, bool fp32_out, int64_t chunk_size) {
  const LinearShape shape = check_linear(op, x, weight, bias, 0);
  check_dim(op, "x", x, 2, "(M, K)");
  FUSEDOPS_CHECK(shape.n > 0, op, ": weight must have at least one class; got shape ",
                 shape_string(weight));
  FUSEDOPS_CHECK(shape.n < (int64_t{1} << 30), op,
                 ": weight must have less than 2^30 classes; got ", shape.n);
  check_target(op, target, "x", x);
  check_loss_options(op, options);
  FUSEDOPS_CHECK(reduction >= 0 && reduction <= 2, op,
                 ": reduction must be a code from 0 to 2; got ", reduction);
  FUSEDOPS_CHECK(!fp32_out || is_half(shape.dtype), op,
                 ": fp32_out must be False for x other than float16 and bfloat16; got x of ",
                 dtype_name(x.scalar_type()));
  FUSEDOPS_CHECK(chunk_size >= 0, op, ": chunk_size must be at least 0; got ", chunk_size);
  const LinearCrossEntropyShape result{shape.m, shape.n, shape.k, shape.dtype,
                                       static_cast<Reduction>(reduction)};
  if (dloss) {
    check_floating(op, "dloss", *dloss);
    check_grad_like(op, "dloss", *dloss, shape.dtype, "x", x);
    FUSEDOPS_CHECK(
        result.per_row() ? dloss->dim() == 1 && dloss->size(0) == shape.m : dloss->dim() == 0, op,
        ": dloss must have the shape of the loss; got ", shape_string(*dloss));
  }
  return result;
}

// A gradient and the two numbers that it is multiplied by.
inline DType check_scale_gradient(const char* op, const Tensor& gradient,
                                  const Tensor& dloss,    // ()
                                  const Tensor& scale) {  // (1,)
  const DType dtype = check_floating(op, "gradient", gradient);
  const auto check_number = [&](const char* name, const Tensor& number, int64_t dim) {
    check_floating(op, name, number);
    FUSEDOPS_CHECK(same_device(number, gradient), op, ": ", name, " must be on ",
                   device_string(gradient), " like gradient; got ", device_string(number));
    FUSEDOPS_CHECK(number.dim() == dim && number.numel() == 1, op, ": ", name, " must have shape ",
                   dim == 0 ? "()" : "(1,)", "; got ", shape_string(number));
  };
  check_number("dloss", dloss, 0);
  check_number("scale", scale, 1);
  return dtype;
}

// The gradient of a mean over many rows is smaller than float16 can tell: what is formed with the
// loss is that of their sum, and whoever knows the gradient of the loss divides.
inline bool divides_later(const LinearCrossEntropyShape& shape, bool knows_dloss) {
  return shape.dtype == DType::kFloat16 && shape.mean() && !knows_dloss;
}

// Rows whose logits are in memory together, where `wanted` is 0: as many as fit 896 MiB. Each chunk
// but the first reads and writes the weight gradient once more.
inline int64_t rows_of_chunk(int64_t rows, int64_t row_bytes, int64_t wanted) {
  constexpr int64_t kChunkBytes = int64_t{7} << 27;
  if (wanted > 0) return wanted;
  const int64_t chunks = std::max<int64_t>(ceil_div(rows * row_bytes, kChunkBytes), 1);
  return round_up(std::max<int64_t>(ceil_div(rows, chunks), 1), int64_t{128});
}

// Where a weight gradient is added up. A half one takes the second of two chunks as it is: one
// rounding more, and no memory. Of more chunks the roundings would add up, so they are fp32's.
inline ScalarType weight_sum_type(ScalarType dtype, int64_t rows, int64_t chunk) {
  const bool half = dtype == ScalarType::Half || dtype == ScalarType::BFloat16;
  return half && rows > 2 * chunk ? ScalarType::Float : dtype;
}

}  // namespace fusedops
