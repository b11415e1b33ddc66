// The contracts of fp8_quantize and _fp8_matmul, checked once for CPU and CUDA.
#pragma once

#include "csrc/common/checks/linear_check.h"
#include "csrc/common/fp8.h"

namespace fusedops {

// ---- fp8_quantize ----

struct QuantizeShape {
  int64_t m, k;
  DType dtype;
  Activation activation;
  Fp8Format format;
  Fp8Scaling rows, columns;
};

inline Fp8Scaling check_fp8_scaling(const char* op, const char* name, int64_t scaling) {
  FUSEDOPS_CHECK(scaling >= 0 && scaling < kNumFp8Scalings, op, ": ", name,
                 " must be a code from 0 to ", kNumFp8Scalings - 1, "; got ", scaling);
  return static_cast<Fp8Scaling>(scaling);
}

constexpr bool scales_blocks(Fp8Scaling scaling) {
  return scaling == Fp8Scaling::kBlock || scaling == Fp8Scaling::kTile;
}

inline Fp8Format check_fp8_format(const char* op, int64_t format) {
  FUSEDOPS_CHECK(format == 0 || format == 1, op, ": format must be a code from 0 to 1; got ",
                 format);
  return static_cast<Fp8Format>(format);
}

// Blocks are scaled in one pass over x, whole rows and tensors in two.
constexpr bool scales_together(Fp8Scaling a, Fp8Scaling b) {
  return a == Fp8Scaling::kNone || b == Fp8Scaling::kNone || a == b ||
         (scales_blocks(a) && scales_blocks(b));
}

inline QuantizeShape check_fp8_quantize(const char* op,
                                        const Tensor& x,                      // (M, K)
                                        const std::optional<Tensor>& saved,   // (M, K)
                                        const std::optional<Tensor>& factor,  // (M, K)
                                        int64_t activation, bool gradient, int64_t format,
                                        int64_t rows, int64_t columns) {
  const Activation code = check_activation(op, activation);
  const Fp8Format of = check_fp8_format(op, format);
  const Fp8Scaling by_rows = check_fp8_scaling(op, "rows", rows);
  const Fp8Scaling by_columns = check_fp8_scaling(op, "columns", columns);
  FUSEDOPS_CHECK(scales_together(by_rows, by_columns), op,
                 ": rows and columns must be scaled alike, or both by blocks; got codes ", rows,
                 " and ", columns);
  const DType dtype = check_floating(op, "x", x);
  check_dim(op, "x", x, 2, "(M, K)");
  if (gradient) check_saved(op, x, saved, code);
  if (factor) {
    check_like(op, "factor", *factor, "x", x);
    check_same_shape(op, "factor", *factor, "x", x);
  }
  return {x.size(0), x.size(1), dtype, code, of, by_rows, by_columns};
}

// ---- _fp8_quantize_pair ----

// Checks both operands; the shape is that of one above the other.
inline QuantizeShape check_fp8_pair(const char* op,
                                    const Tensor& a,  // (N, K)
                                    const Tensor& b,  // (N, K)
                                    int64_t format, bool columns) {
  const Fp8Format of = check_fp8_format(op, format);
  const DType dtype = check_floating(op, "a", a);
  check_dim(op, "a", a, 2, "(N, K)");
  FUSEDOPS_CHECK(a.size(0) % kFp8Block == 0, op, ": a must have a multiple of ", kFp8Block,
                 " rows; got shape ", shape_string(a));
  check_like(op, "b", b, "a", a);
  check_same_shape(op, "b", b, "a", a);
  return {2 * a.size(0),
          a.size(1),
          dtype,
          Activation::kNone,
          of,
          Fp8Scaling::kTile,
          columns ? Fp8Scaling::kTile : Fp8Scaling::kNone};
}

// ---- _fp8_hidden_grads ----

inline QuantizeShape check_fp8_hidden(const char* op,
                                      const Tensor& dh,                     // (M, K)
                                      const Tensor& saved,                  // (M, K)
                                      const std::optional<Tensor>& factor,  // (M, K)
                                      int64_t activation, int64_t format, bool rows, bool columns,
                                      int64_t hidden) {
  const Activation code = check_activation(op, activation);
  const Fp8Format of = check_fp8_format(op, format);
  FUSEDOPS_CHECK(hidden == 0 || hidden == 3 || hidden == 4, op, ": hidden must be 0, 3 or 4; got ",
                 hidden);
  const DType dtype = check_floating(op, "dh", dh);
  check_dim(op, "dh", dh, 2, "(M, K)");
  check_like(op, "saved", saved, "dh", dh);
  check_same_shape(op, "saved", saved, "dh", dh);
  if (factor) {
    check_like(op, "factor", *factor, "dh", dh);
    check_same_shape(op, "factor", *factor, "dh", dh);
  }
  const auto by = [](bool wanted) { return wanted ? Fp8Scaling::kBlock : Fp8Scaling::kNone; };
  return {dh.size(0), dh.size(1), dtype, code, of, by(rows), by(columns)};
}

constexpr ScalarType scalar_type_of(Fp8Format format) {
  return format == Fp8Format::kE4M3 ? ScalarType::Float8_e4m3fn : ScalarType::Float8_e5m2;
}

// ---- _fp8_matmul ----

struct Fp8MatmulShape {
  int64_t m, n, k;
  Fp8Format format_a, format_b;
  Fp8Scaling scaling_a, scaling_b;
  Activation activation;
  DType out_dtype;
};

inline Fp8Format check_fp8(const char* op, const char* name, const Tensor& tensor) {
  const ScalarType type = tensor.scalar_type();
  FUSEDOPS_CHECK(type == ScalarType::Float8_e4m3fn || type == ScalarType::Float8_e5m2, op, ": ",
                 name, " must be float8_e4m3fn or float8_e5m2; got ", dtype_name(type));
  return type == ScalarType::Float8_e4m3fn ? Fp8Format::kE4M3 : Fp8Format::kE5M2;
}

// What a scale's shape says; the first that fits, where several do and mean the same.
inline Fp8Scaling check_fp8_scale(const char* op, const char* name, const Tensor& scale,
                                  const char* of_name, const Tensor& of) {  // (rows, K)
  FUSEDOPS_CHECK(same_device(scale, of), op, ": ", name, " must be on ", device_string(of),
                 " like ", of_name, "; got ", device_string(scale));
  FUSEDOPS_CHECK(scale.scalar_type() == ScalarType::Float, op, ": ", name, " must be float32; got ",
                 dtype_name(scale.scalar_type()));
  const int64_t rows = of.size(0), blocks = ceil_div(of.size(1), kFp8Block);
  const int64_t tiles = ceil_div(rows, kFp8Block);
  if (scale.dim() == 2) {
    const int64_t first = scale.size(0), second = scale.size(1);
    if (first == 1 && second == 1) return Fp8Scaling::kTensor;
    if (first == rows && second == 1) return Fp8Scaling::kRow;
    if (first == rows && second == blocks) return Fp8Scaling::kBlock;
    if (first == tiles && second == blocks) return Fp8Scaling::kTile;
  }
  fail(op, ": ", name, " must have shape (1, 1), (", rows, ", 1), (", rows, ", ", blocks, ") or (",
       tiles, ", ", blocks, ") to match ", of_name, " ", shape_string(of), "; got ",
       shape_string(scale));
}

inline Fp8MatmulShape check_fp8_matmul(const char* op,
                                       const Tensor& a,  // (M, K)
                                       const Tensor& b,  // (N, K)
                                       const Tensor& scale_a, const Tensor& scale_b,
                                       const std::optional<Tensor>& bias,  // (N,)
                                       int64_t activation, int64_t out_dtype) {
  const Activation code = check_activation(op, activation);
  FUSEDOPS_CHECK(out_dtype >= 0 && out_dtype <= 2, op,
                 ": out_dtype must be a code from 0 to 2; got ", out_dtype);
  const DType out = static_cast<DType>(out_dtype);
  const Fp8Format format_a = check_fp8(op, "a", a), format_b = check_fp8(op, "b", b);
  FUSEDOPS_CHECK(same_device(b, a), op, ": b must be on ", device_string(a), " like a; got ",
                 device_string(b));
  check_dim(op, "a", a, 2, "(M, K)");
  check_dim(op, "b", b, 2, "(N, K)");
  FUSEDOPS_CHECK(b.size(1) == a.size(1), op, ": b must have shape (N, ", a.size(1), ") to match a ",
                 shape_string(a), "; got ", shape_string(b));
  const Fp8Scaling scaling_a = check_fp8_scale(op, "scale_a", scale_a, "a", a);
  const Fp8Scaling scaling_b = check_fp8_scale(op, "scale_b", scale_b, "b", b);
  if (bias) {
    FUSEDOPS_CHECK(same_device(*bias, a), op, ": bias must be on ", device_string(a),
                   " like a; got ", device_string(*bias));
    FUSEDOPS_CHECK(bias->scalar_type() == scalar_type_of(out), op, ": bias must have dtype ",
                   dtype_name(scalar_type_of(out)), " like the output; got ",
                   dtype_name(bias->scalar_type()));
    check_bias(op, *bias, b.size(0), "b", b);
  }
  return {a.size(0), b.size(0), a.size(1), format_a, format_b, scaling_a, scaling_b, code, out};
}

// ---- _fp8_wgrad_ ----

inline Fp8MatmulShape check_fp8_wgrad(const char* op,
                                      const Tensor& a,  // (M, K)
                                      const Tensor& b,  // (N, K)
                                      const Tensor& scale_a, const Tensor& scale_b,
                                      const Tensor& main_grad) {  // (M, N)
  const Fp8MatmulShape shape =
      check_fp8_matmul(op, a, b, scale_a, scale_b, std::nullopt, 0, int64_t(DType::kFloat32));
  check_main_grad(op, main_grad, shape.m, shape.n, a);
  return shape;
}

}  // namespace fusedops
