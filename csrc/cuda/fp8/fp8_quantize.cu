// fp8_quantize on CUDA.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>
#include <tuple>

#include "csrc/common/checks/fp8_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/fp8_hidden_parts.h"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/fp8/fp8_hidden.h"
#include "csrc/cuda/fp8/fp8_host.h"

namespace fusedops::cuda {
namespace {

// What is read, and how; the tensors are readable ones.
Fp8Quantize problem_of(const QuantizeShape& shape, bool gradient, bool power_of_two,
                       const Tensor& x, const std::optional<Tensor>& saved,
                       const std::optional<Tensor>& factor) {
  Fp8Quantize p{};
  p.dtype = shape.dtype == DType::kFloat64 ? DType::kFloat32 : shape.dtype;
  p.activation = shape.activation, p.gradient = gradient;
  p.format = shape.format, p.power_of_two = power_of_two;
  p.m = shape.m, p.k = shape.k;
  p.x = x.const_data_ptr(), p.x_stride = x.stride(0);
  p.vectors = takes_vectors(x, p.dtype);
  if (gradient && saved && saved_for_backward(shape.activation) != Saved::kNothing) {
    p.saved = saved->const_data_ptr(), p.saved_stride = saved->stride(0);
    p.vectors = p.vectors && takes_vectors(*saved, p.dtype);
  }
  if (factor) {
    p.factor = factor->const_data_ptr(), p.factor_stride = factor->stride(0);
    p.vectors = p.vectors && takes_vectors(*factor, p.dtype);
  }
  return p;
}

// Whether the kernel of rows takes it.
bool rows_alone(const Fp8Quantize& p) {
  return p.rows.scaling == Fp8Scaling::kBlock && p.columns.scaling == Fp8Scaling::kNone &&
         p.partial == nullptr && !p.gradient;
}

// dz = x act'(saved) by blocks, which a hidden layer's kernel does without its values.
bool is_hidden_gradient(const Fp8Quantize& p) {
  const auto by_blocks = [](const Fp8Side& side) {
    return side.scaling == Fp8Scaling::kNone || scales_blocks(side.scaling);
  };
  return p.gradient && p.saved != nullptr && p.factor == nullptr && p.vectors &&
         dtype_bytes(p.dtype) == 2 && by_blocks(p.rows) && by_blocks(p.columns);
}
const char* launch_hidden_gradient(const Fp8Quantize& p, const LaunchContext& context) {
  Fp8Hidden hidden;
  hidden.gradient = p, hidden.saved = p;
  hidden.saved.x = p.saved, hidden.saved.x_stride = p.saved_stride;
  hidden.saved.rows = hidden.saved.columns = {}, hidden.saved.partial = nullptr;
  hidden.activation = p.activation, hidden.m = p.m, hidden.k = p.k;
  return launch_fp8_hidden(hidden, context);
}

// That of maxima, where scales need it, and the one that quantises.
const char* launch_passes(const Fp8Quantize& p, const LaunchContext& context) {
  if (rows_alone(p)) return launch_fp8_rows(p, context);
  if (is_hidden_gradient(p)) return launch_hidden_gradient(p, context);
  if (p.rows.maxima || p.columns.maxima) {
    if (const char* error = launch_fp8_quantize(p, true, context)) return error;
  }
  return launch_fp8_quantize(p, false, context);
}

// What the tensors of an empty matrix hold.
void fill_empty(const Side& side, Fp8Format format, bool power_of_two, const Tensor& sums) {
  const float scale = kFp8SmallestMaximum / largest_value(format);
  Tensor scales = side.scale, counts = sums;
  torch::stable::fill_(scales, power_of_two ? next_power_of_two(scale) : scale);
  torch::stable::zero_(counts);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> fp8_quantize(
    const Tensor& x,                      // (M, K)
    const std::optional<Tensor>& saved,   // (M, K)
    const std::optional<Tensor>& factor,  // (M, K)
    int64_t activation, bool gradient, int64_t format, int64_t rows, int64_t columns,
    bool power_of_two, bool need_sums, bool sums_fp32) {
  constexpr const char* kOp = "fp8_quantize";
  // Guard
  const LaunchScope scope(kOp, x);

  // Checks
  const QuantizeShape shape =
      check_fp8_quantize(kOp, x, saved, factor, activation, gradient, format, rows, columns);
  const int64_t tile_rows = ceil_div(shape.m, kFp8Block);
  FUSEDOPS_CHECK(tile_rows * ceil_div(shape.k, kFp8Block) < int64_t{1} << 31, kOp,
                 ": x must have fewer than 2^31 tiles of 128x128; got shape ", shape_string(x));

  // Contract
  const Tensor input = readable(x);
  const std::optional<Tensor> given = readable(saved), times = readable(factor);

  // Allocate
  const Side by_rows = allocate_side(x, shape.rows, shape.format, shape.m, shape.k);
  const Side by_columns = allocate_side(x, shape.columns, shape.format, shape.k, shape.m);
  const DType sums_dtype = sums_fp32 ? DType::kFloat32 : shape.dtype;
  const Tensor sums = new_dense(x, {need_sums ? shape.k : 0}, scalar_type_of(sums_dtype));
  const std::tuple result{by_rows.q, by_rows.scale, by_columns.q, by_columns.scale, sums};

  // Empty early return
  if (shape.m == 0 || shape.k == 0) {
    for (const Side* side : {&by_rows, &by_columns}) {
      fill_empty(*side, shape.format, power_of_two, sums);
    }
    return result;
  }

  // Config
  Fp8Quantize p = problem_of(shape, gradient, power_of_two, input, given, times);
  p.rows = by_rows.side, p.columns = by_columns.side;
  const Tensor partial = new_dense(x, {need_sums ? tile_rows * shape.k : 0}, ScalarType::Float);
  if (need_sums) p.partial = static_cast<float*>(partial.mutable_data_ptr());

  // Launch
  const LaunchContext context = scope.context();
  const char* error = launch_passes(p, context);
  if (!error && need_sums) {
    error = launch_fp8_sums(p.partial, tile_rows, shape.k, sums.mutable_data_ptr(), sums_dtype,
                            context);
  }

  // Launch check
  FUSEDOPS_CHECK(!error, kOp, ": ", error);
  check_launch(kOp);
  return result;
}

// ---- _fp8_quantize_pair ----

std::tuple<Tensor, Tensor, Tensor, Tensor> fp8_quantize_pair(const Tensor& a,  // (N, K)
                                                             const Tensor& b,  // (N, K)
                                                             int64_t format, bool columns,
                                                             bool power_of_two) {
  constexpr const char* kOp = "_fp8_quantize_pair";
  const LaunchScope scope(kOp, a);
  QuantizeShape shape = check_fp8_pair(kOp, a, b, format, columns);
  const Side by_rows = allocate_side(a, shape.rows, shape.format, shape.m, shape.k);
  const Side by_columns = allocate_side(a, shape.columns, shape.format, shape.k, shape.m);
  const std::tuple result{by_rows.q, by_rows.scale, by_columns.q, by_columns.scale};
  if (shape.m == 0 || shape.k == 0) return result;  // scales of nothing

  shape.m /= 2;
  const Tensor inputs[] = {readable(a), readable(b)};
  const char* error = nullptr;
  for (int64_t part = 0; !error && part < 2; ++part) {
    Fp8Quantize p =
        problem_of(shape, false, power_of_two, inputs[part], std::nullopt, std::nullopt);
    const int64_t before = part * shape.m, tiles = before / kFp8Block;
    p.rows = by_rows.side, p.columns = by_columns.side;
    p.rows.q += before * p.rows.pitch, p.rows.scale += tiles * p.rows.scale_pitch;
    if (columns) p.columns.q += before, p.columns.scale += tiles;
    error = launch_fp8_quantize(p, false, scope.context());
  }
  FUSEDOPS_CHECK(!error, kOp, ": ", error);
  check_launch(kOp);
  return result;
}

// ---- _fp8_hidden_grads ----

// A matrix that the kernel reads in units of 16 bytes.
Tensor in_units(const Tensor& x, DType dtype) {
  const Tensor given = readable(x);
  if (takes_vectors(given, dtype)) return given;
  const int64_t columns = round_up(x.size(1), 16 / dtype_bytes(dtype));
  Tensor padded = new_dense(x, {x.size(0), columns});
  Tensor part = torch::stable::narrow(padded, 1, 0, x.size(1));
  torch::stable::copy_(part, given);
  return part;
}

// The gradients of all parts, and what the kernel writes for them.
struct Grads {
  Tensor q, scale, q_t, scale_t, partial, sums;
};

Grads allocate_grads(const Tensor& dh, const QuantizeShape& s, int64_t parts, bool need_sums,
                     DType sums_dtype) {
  const auto empty = [&](int64_t rows, int64_t columns, ScalarType type) {
    return new_dense(dh, {rows, columns}, type);
  };
  const ScalarType type = scalar_type_of(s.format);
  const bool rows = s.rows != Fp8Scaling::kNone, columns = s.columns != Fp8Scaling::kNone;
  const int64_t width = parts * round_up(s.k, kFp8Columns), lines = parts * s.k;
  Grads g;
  g.q = empty(rows ? s.m : 0, rows ? width : 0, type);
  g.scale = empty(rows ? parts * ceil_div(s.k, kFp8Block) : 0,
                  rows ? round_up(s.m, kFp8ScaleRows) : 0, ScalarType::Float);
  g.q_t = empty(columns ? lines : 0, columns ? round_up(s.m, kFp8Columns) : 0, type);
  g.scale_t = empty(columns ? ceil_div(s.m, kFp8Block) : 0,
                    columns ? round_up(lines, kFp8ScaleRows) : 0, ScalarType::Float);
  const int64_t bands = need_sums ? ceil_div(s.m, kFp8Block) : 0;
  g.partial = empty(parts * bands, s.k, ScalarType::Float);
  g.sums = new_dense(dh, {need_sums ? lines : 0}, scalar_type_of(sums_dtype));
  return g;
}

// Part 0 or 1 of them.
void set_grads(const Grads& g, const QuantizeShape& s, int64_t part, int64_t parts,
               Fp8Quantize& p) {
  if (s.rows != Fp8Scaling::kNone) {
    p.rows.scaling = s.rows;
    p.rows.width = round_up(s.k, kFp8Columns), p.rows.pitch = parts * p.rows.width;
    p.rows.q = static_cast<uint8_t*>(g.q.mutable_data_ptr()) + part * p.rows.width;
    p.rows.scale_pitch = p.rows.scale_lines = g.scale.size(1);
    p.rows.scale = static_cast<float*>(g.scale.mutable_data_ptr()) +
                   part * ceil_div(s.k, kFp8Block) * p.rows.scale_pitch;
  }
  if (s.columns != Fp8Scaling::kNone) {
    p.columns.scaling = s.columns;
    p.columns.pitch = p.columns.width = g.q_t.size(1);
    p.columns.q = static_cast<uint8_t*>(g.q_t.mutable_data_ptr()) + part * s.k * p.columns.pitch;
    p.columns.scale_pitch = g.scale_t.size(1);
    p.columns.scale_lines = part + 1 < parts ? s.k : p.columns.scale_pitch - part * s.k;
    p.columns.scale = static_cast<float*>(g.scale_t.mutable_data_ptr()) + part * s.k;
  }
  if (g.partial.size(0) > 0) {
    p.partial =
        static_cast<float*>(g.partial.mutable_data_ptr()) + part * ceil_div(s.m, kFp8Block) * s.k;
  }
}

Fp8HiddenGrads launch_hidden(const char* op, const QuantizeShape& shape, const Tensor& dh,
                             const Tensor& saved, const std::optional<Tensor>& factor,
                             const Fp8HiddenOptions& o, const LaunchScope& scope) {
  const int64_t parts = factor ? 2 : 1;
  const DType sums_dtype = o.sums_fp32 ? DType::kFloat32 : shape.dtype;
  const Grads grads = allocate_grads(dh, shape, parts, o.need_sums, sums_dtype);
  const Side hidden = allocate_side(dh, Fp8Scaling(o.hidden), Fp8Format::kE4M3, shape.k, shape.m);

  Fp8Hidden p;
  p.gated = factor.has_value();
  p.activation = shape.activation;
  p.m = shape.m, p.k = shape.k;
  Tensor inputs[3];
  const auto slot = [&](int i, const Tensor& x) {
    inputs[i] = in_units(x, shape.dtype);
    return problem_of(shape, false, o.power_of_two, inputs[i], std::nullopt, std::nullopt);
  };
  p.gradient = slot(0, dh);
  p.saved = slot(1, saved);
  p.saved.format = Fp8Format::kE4M3;
  p.saved.columns = hidden.side;
  set_grads(grads, shape, 0, parts, p.gradient);
  if (factor) {
    p.factor = slot(2, *factor);
    set_grads(grads, shape, 1, parts, p.factor);
  }

  const LaunchContext context = scope.context();
  const char* error = launch_fp8_hidden(p, context);
  for (int64_t part = 0; !error && o.need_sums && part < parts; ++part) {
    const int64_t bands = ceil_div(shape.m, kFp8Block);
    auto* const sums = static_cast<char*>(grads.sums.mutable_data_ptr());
    error = launch_fp8_sums((part == 0 ? p.gradient : p.factor).partial, bands, shape.k,
                            sums + part * shape.k * dtype_bytes(sums_dtype), sums_dtype, context);
  }
  FUSEDOPS_CHECK(!error, op, ": ", error);
  check_launch(op);
  return {grads.q, grads.scale, grads.q_t, grads.scale_t, hidden.q, hidden.scale, grads.sums};
}

Fp8HiddenGrads fp8_hidden_grads(const Tensor& dh,                     // (M, K)
                                const Tensor& saved,                  // (M, K)
                                const std::optional<Tensor>& factor,  // (M, K)
                                int64_t activation, int64_t format, bool rows, bool columns,
                                int64_t hidden, bool power_of_two, bool need_sums, bool sums_fp32) {
  constexpr const char* kOp = "_fp8_hidden_grads";
  const LaunchScope scope(kOp, dh);
  const QuantizeShape shape =
      check_fp8_hidden(kOp, dh, saved, factor, activation, format, rows, columns, hidden);
  const Fp8HiddenOptions options{
      activation, format,       int64_t(shape.rows), int64_t(shape.columns),
      hidden,     power_of_two, need_sums,           sums_fp32};
  const cpu::NoGradGuard no_grad;
  const bool halves = shape.dtype == DType::kFloat16 || shape.dtype == DType::kBFloat16;
  if (!halves || shape.m == 0 || shape.k == 0) {
    return cpu::compose_hidden_grads(&fp8_quantize, dh, saved, factor, options);
  }
  return launch_hidden(kOp, shape, dh, saved, factor, options, scope);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("fp8_quantize", FUSEDOPS_BOX(&fp8_quantize));
  m.impl("_fp8_quantize_pair", FUSEDOPS_BOX(&fp8_quantize_pair));
  m.impl("_fp8_hidden_grads", FUSEDOPS_BOX(&fp8_hidden_grads));
}

}  // namespace fusedops::cuda
