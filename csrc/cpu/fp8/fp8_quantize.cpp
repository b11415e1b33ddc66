// fp8_quantize on the CPU, in fp32: what csrc/cuda/fp8/fp8_quantize.cuh does, bit for bit where x
// is quantised as it is.
#include <torch/headeronly/util/Float8_e4m3fn.h>
#include <torch/headeronly/util/Float8_e5m2.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "csrc/common/checks/fp8_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/fp8_hidden_parts.h"
#include "csrc/cpu/activation.h"
#include "csrc/cpu/pointwise.h"

namespace fusedops::cpu {
namespace {

// v in fp32, dense, before it is rounded to x's dtype.
Tensor values(const Tensor& x, const std::optional<Tensor>& saved,
              const std::optional<Tensor>& factor, bool gradient, Activation activation) {
  Tensor v;
  if (gradient) {
    v = copy_as(dense(activation_backward(x, saved, activation)), ScalarType::Float);
  } else {
    v = dense(copy_as(dense(x), ScalarType::Float));
    activate(v, activation);
  }
  if (factor) v = call("aten::mul", "Tensor", v, to_dtype(dense(*factor), ScalarType::Float));
  return dense(v);
}

// The scale of values of a largest magnitude, and its inverse.
struct Scale {
  float scale, inverse;
};
Scale scale_of(float maximum, float largest, bool power_of_two) {
  if (!std::isfinite(maximum)) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    return {nan, 0};  // what is finite in the block becomes 0, as the padding is
  }
  maximum = std::max(maximum, kFp8SmallestMaximum);
  if (!power_of_two) return {maximum / largest, largest / maximum};
  const float scale = next_power_of_two(maximum / largest);
  return {scale, 1.0f / scale};
}

uint8_t rounded(float value, Fp8Format format) {
  if (std::isnan(value)) return 0x7f;
  const float largest = largest_value(format);
  const float inside = std::min(std::max(value, -largest), largest);
  return format == Fp8Format::kE4M3 ? c10::Float8_e4m3fn(inside).x : c10::Float8_e5m2(inside).x;
}

// |maximum|, of which NaN is one.
float larger(float maximum, float value) {
  const float magnitude = std::fabs(value);
  return magnitude > maximum || std::isnan(magnitude) ? magnitude : maximum;
}

// One orientation: element (r, c) of a (rows, columns) matrix is v[r * row_step + c * column_step].
struct View {
  const float* v;
  int64_t rows, columns, row_step, column_step;

  float at(int64_t r, int64_t c) const { return v[r * row_step + c * column_step]; }
};

struct Block {
  int64_t rows, columns;  // at most
};
Block block_of(Fp8Scaling scaling, const View& view) {
  switch (scaling) {
    case Fp8Scaling::kTensor: return {view.rows, view.columns};
    case Fp8Scaling::kRow: return {1, view.columns};
    case Fp8Scaling::kBlock: return {1, kFp8Block};
    default: return {kFp8Block, kFp8Block};
  }
}

// Rows of blocks that are worth a thread.
int64_t grain_of(int64_t elements) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, elements));
}

void quantize_block(const View& view, int64_t row, int64_t column, Block size, uint8_t* q,
                    int64_t pitch, float* scale, Fp8Format format, bool power_of_two) {
  const int64_t row_end = std::min(row + size.rows, view.rows);
  const int64_t column_end = std::min(column + size.columns, view.columns);
  float maximum = 0;
  for (int64_t r = row; r < row_end; ++r) {
    for (int64_t c = column; c < column_end; ++c) maximum = larger(maximum, view.at(r, c));
  }
  const Scale s = scale_of(maximum, largest_value(format), power_of_two);
  *scale = s.scale;
  for (int64_t r = row; r < row_end; ++r) {
    for (int64_t c = column; c < column_end; ++c) {
      q[r * pitch + c] = rounded(view.at(r, c) * s.inverse, format);
    }
  }
}

std::pair<Tensor, Tensor> quantized(const View& view, Fp8Scaling scaling, Fp8Format format,
                                    bool power_of_two) {
  const ScalarType type = scalar_type_of(format);
  if (scaling == Fp8Scaling::kNone) {
    return {torch::stable::empty({0, 0}, type), torch::stable::empty({0, 0}, ScalarType::Float)};
  }
  const int64_t pitch = round_up(view.columns, kFp8Columns);
  const Tensor q = torch::stable::empty({view.rows, pitch}, type);
  const Fp8ScaleShape shape = scale_shape(scaling, view.rows, view.columns);
  const Tensor scales = torch::stable::empty({shape.rows, shape.columns}, ScalarType::Float);
  auto* const bytes = static_cast<uint8_t*>(q.mutable_data_ptr());
  auto* const scale = static_cast<float*>(scales.mutable_data_ptr());
  std::fill_n(bytes, view.rows * pitch, uint8_t{0});
  std::fill_n(scale, shape.rows * shape.columns,
              scale_of(0, largest_value(format), power_of_two).scale);
  if (view.rows == 0 || view.columns == 0) return {q, scales};
  const Block size = block_of(scaling, view);
  torch::stable::parallel_for(0, ceil_div(view.rows, size.rows), grain_of(size.rows * view.columns),
                              [&](int64_t begin, int64_t end) {
                                for (int64_t i = begin; i < end; ++i) {
                                  for (int64_t j = 0; j * size.columns < view.columns; ++j) {
                                    const int64_t at = scaling == Fp8Scaling::kBlock
                                                           ? j * shape.columns + i
                                                           : i * shape.columns + j;
                                    quantize_block(view, i * size.rows, j * size.columns, size,
                                                   bytes, pitch, scale + at, format, power_of_two);
                                  }
                                }
                              });
  return {q, scales};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> fp8_quantize(
    const Tensor& x,                      // (M, K)
    const std::optional<Tensor>& saved,   // (M, K)
    const std::optional<Tensor>& factor,  // (M, K)
    int64_t activation, bool gradient, int64_t format, int64_t rows, int64_t columns,
    bool power_of_two, bool need_sums, bool sums_fp32) {
  const QuantizeShape shape = check_fp8_quantize("fp8_quantize", x, saved, factor, activation,
                                                 gradient, format, rows, columns);
  const NoGradGuard no_grad;
  const Tensor exact = values(x, saved, factor, gradient, shape.activation);
  const Tensor v = copy_as(to_dtype(exact, x.scalar_type()), ScalarType::Float);
  const auto* const data = static_cast<const float*>(v.const_data_ptr());
  const auto [q, scale] =
      quantized({data, shape.m, shape.k, shape.k, 1}, shape.rows, shape.format, power_of_two);
  const auto [q_t, scale_t] =
      quantized({data, shape.k, shape.m, 1, shape.k}, shape.columns, shape.format, power_of_two);
  const ScalarType dtype = sums_fp32 ? ScalarType::Float : x.scalar_type();
  const Tensor sums = need_sums ? sum_rows(exact, dtype) : torch::stable::empty({0}, dtype);
  return {q, scale, q_t, scale_t, sums};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> fp8_quantize_pair(const Tensor& a,  // (N, K)
                                                             const Tensor& b,  // (N, K)
                                                             int64_t format, bool columns,
                                                             bool power_of_two) {
  const QuantizeShape shape = check_fp8_pair("_fp8_quantize_pair", a, b, format, columns);
  const NoGradGuard no_grad;
  const Tensor both = joined(a, b, 0, shape.m / 2, shape.m);
  const auto [q, scale, q_t, scale_t, sums] =
      fp8_quantize(both, std::nullopt, std::nullopt, 0, false, format, int64_t(shape.rows),
                   int64_t(shape.columns), power_of_two, false, false);
  return {q, scale, q_t, scale_t};
}

Fp8HiddenGrads fp8_hidden_grads(const Tensor& dh,                     // (M, K)
                                const Tensor& saved,                  // (M, K)
                                const std::optional<Tensor>& factor,  // (M, K)
                                int64_t activation, int64_t format, bool rows, bool columns,
                                int64_t hidden, bool power_of_two, bool need_sums, bool sums_fp32) {
  const QuantizeShape shape = check_fp8_hidden("_fp8_hidden_grads", dh, saved, factor, activation,
                                               format, rows, columns, hidden);
  const NoGradGuard no_grad;
  const Fp8HiddenOptions options{
      activation, format,       int64_t(shape.rows), int64_t(shape.columns),
      hidden,     power_of_two, need_sums,           sums_fp32};
  return compose_hidden_grads(&fp8_quantize, dh, saved, factor, options);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("fp8_quantize", FUSEDOPS_BOX(&fp8_quantize));
  m.impl("_fp8_quantize_pair", FUSEDOPS_BOX(&fp8_quantize_pair));
  m.impl("_fp8_hidden_grads", FUSEDOPS_BOX(&fp8_hidden_grads));
}

}  // namespace fusedops::cpu
