// fp8_quantize on CUDA.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>
#include <tuple>

#include "csrc/common/checks/fp8_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/fp8/fp8_quantize.h"

namespace fusedops::cuda {
namespace {

// A tensor of fp32 where it was one of fp64, with rows that are contiguous.
Tensor readable(const Tensor& x) {
  Tensor given = x;
  if (x.scalar_type() == ScalarType::Double) given = torch::stable::to(x, ScalarType::Float);
  const bool rows = given.stride(1) == 1 && (given.stride(0) >= given.size(1));
  return rows ? given : torch::stable::contiguous(given);
}
std::optional<Tensor> readable(const std::optional<Tensor>& x) {
  return x ? std::optional<Tensor>(readable(*x)) : std::nullopt;
}

bool takes_vectors(const Tensor& x, DType dtype) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0 &&
         x.stride(0) * dtype_bytes(dtype) % 16 == 0;
}

// One orientation: its tensors, and where the kernel finds them.
struct Side {
  Tensor q, scale, maxima;
  Fp8Side side;
};

Side allocate_side(const Tensor& x, Fp8Scaling scaling, Fp8Format format, int64_t rows,
                   int64_t columns) {
  Side made;
  const bool wanted = scaling != Fp8Scaling::kNone;
  const Fp8ScaleShape shape = scale_shape(scaling, rows, columns);
  made.side.scaling = scaling;
  made.side.pitch = wanted ? round_up(columns, kFp8Columns) : 0;
  made.side.scale_pitch = shape.columns;
  made.q =
      torch::stable::new_empty(x, {wanted ? rows : 0, made.side.pitch}, scalar_type_of(format));
  made.scale = torch::stable::new_empty(x, {shape.rows, shape.columns}, ScalarType::Float);
  made.side.q = static_cast<uint8_t*>(made.q.mutable_data_ptr());
  made.side.scale = static_cast<float*>(made.scale.mutable_data_ptr());
  if (wanted && !scales_blocks(scaling)) {
    made.maxima = torch::stable::new_empty(x, {shape.rows}, ScalarType::Int);
    made.maxima = torch::stable::zero_(made.maxima);
    made.side.maxima = static_cast<uint32_t*>(made.maxima.mutable_data_ptr());
  }
  return made;
}

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
  const Tensor sums =
      torch::stable::new_empty(x, {need_sums ? shape.k : 0}, scalar_type_of(sums_dtype));
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
  const Tensor partial =
      torch::stable::new_empty(x, {need_sums ? tile_rows * shape.k : 0}, ScalarType::Float);
  if (need_sums) p.partial = static_cast<float*>(partial.mutable_data_ptr());

  // Launch
  const LaunchContext context = scope.context();
  const char* error = nullptr;
  if (p.rows.maxima || p.columns.maxima) error = launch_fp8_quantize(p, true, context);
  if (!error) error = launch_fp8_quantize(p, false, context);
  if (!error && need_sums) {
    error = launch_fp8_sums(p.partial, tile_rows, shape.k, sums.mutable_data_ptr(), sums_dtype,
                            context);
  }

  // Launch check
  FUSEDOPS_CHECK(!error, kOp, ": ", error);
  check_launch(kOp);
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("fp8_quantize", FUSEDOPS_BOX(&fp8_quantize));
}

}  // namespace fusedops::cuda
