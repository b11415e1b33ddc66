// _fp8_matmul and _fp8_wgrad_ on CUDA.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "csrc/common/checks/fp8_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/fp8_emulation.h"
#include "csrc/common/host/launch.h"
#include "csrc/cutlass/configs/alignment.h"
#include "csrc/cutlass/kernels/fp8/sm90_fp8.h"
#include "csrc/cutlass/ops/linear_parts.h"

namespace fusedops {
namespace fp8 {
namespace {

RunFn g_kernels[2][kNumDTypes];  // NOTE: zero-initialised before any dynamic initialiser runs.

}  // namespace

RunFn find_kernels(bool a_is_e5m2, DType out) {
  return g_kernels[a_is_e5m2][static_cast<int>(out)];
}

bool register_kernels(bool a_is_e5m2, DType out, RunFn run) {
  g_kernels[a_is_e5m2][static_cast<int>(out)] = run;
  return true;
}

}  // namespace fp8

namespace {

bool aligned(const Tensor& tensor) { return aligned16(tensor.const_data_ptr()); }

// The kernels that take a product, or null: there emulation does.
fp8::RunFn kernels_of(const Fp8MatmulShape& shape, const LaunchScope& scope) {
  constexpr int64_t kMost = int64_t{1} << 30;  // coordinates are 32-bit
  const bool fits =
      shape.k > 0 && shape.k % kFp8Columns == 0 && std::max({shape.m, shape.n, shape.k}) <= kMost;
  const DeviceFacts& facts = scope.facts();
  const bool hopper = facts.capability / 10 == 9 && facts.code_version >= 90;
  if (!fits || !hopper || shape.format_b != Fp8Format::kE4M3) return nullptr;
  return fp8::find_kernels(shape.format_a == Fp8Format::kE5M2, shape.out_dtype);
}

// ---- operands ----

// Contiguous rows that begin at units of 16 bytes, copied where they do not.
Tensor dense_operand(const Tensor& q) {  // (rows, K)
  const bool rows = q.size(1) <= 1 || q.stride(1) == 1;
  const bool strides = q.size(0) <= 1 || (q.stride(0) >= q.size(1) && q.stride(0) % 16 == 0);
  if (rows && strides && aligned(q)) return q;
  return torch::stable::clone(dense(q));
}

// (rows, ceil(K / 128)), the scales of neighbouring rows side by side, in whole units of 16 bytes.
Tensor row_scales(const Tensor& scale, Fp8Scaling scaling, int64_t rows, int64_t blocks) {
  const bool lies = scaling == Fp8Scaling::kBlock && (rows == 1 || scale.stride(0) == 1) &&
                    scale.stride(1) >= round_up(rows, kFp8ScaleRows) &&
                    scale.stride(1) % kFp8ScaleRows == 0 && aligned(scale);
  if (lies) return scale;
  const cpu::NoGradGuard no_grad;
  Tensor padded = new_dense(scale, {blocks, round_up(rows, kFp8ScaleRows)});
  Tensor narrow = torch::stable::narrow(padded, 1, 0, rows);
  Tensor target = cpu::transposed(narrow);
  const bool tiles = scaling == Fp8Scaling::kTile;
  torch::stable::copy_(target, tiles ? cpu::spread(scale, kFp8Block, 0, rows) : scale);
  return target;
}

// Whether one scale serves all of K.
constexpr bool is_factor(Fp8Scaling scaling) {
  return scaling == Fp8Scaling::kTensor || scaling == Fp8Scaling::kRow;
}

fp8::Scales view_of(const Tensor& scale, Fp8Scaling scaling) {
  fp8::Scales view{static_cast<const float*>(scale.const_data_ptr()), scale.stride(0),
                   scale.stride(1)};
  if (scaling == Fp8Scaling::kTensor) view.row_stride = 0;
  if (is_factor(scaling)) view.block_stride = 0;
  return view;
}

// The scales as kernels read them; the holders keep what had to be copied.
struct ScaleHolders {
  Tensor a, b;
};
void set_scales(const Tensor& scale_a, const Tensor& scale_b, const Fp8MatmulShape& shape,
                fp8::Problem& p, ScaleHolders& holders) {
  const int64_t blocks = ceil_div(shape.k, kFp8Block);
  const Fp8Scaling of_a = shape.scaling_a, of_b = shape.scaling_b;
  if (is_factor(of_a) && is_factor(of_b)) {
    p.scaling = fp8::Scaling::kResult;
    p.scale_a = view_of(scale_a, of_a);
    p.scale_b = view_of(scale_b, of_b);
    return;
  }
  const bool b_by_tile = of_b == Fp8Scaling::kTile || of_b == Fp8Scaling::kTensor;
  p.scaling = b_by_tile ? fp8::Scaling::kRowTile : fp8::Scaling::kRowRow;
  p.a_by_tile = !b_by_tile && of_a == Fp8Scaling::kTile;
  if (p.a_by_tile) {
    p.scale_a = view_of(scale_a, of_a);
  } else {
    holders.a = row_scales(scale_a, of_a, shape.m, blocks);
    p.scale_a = view_of(holders.a, Fp8Scaling::kBlock);
  }
  if (b_by_tile) {
    p.scale_b = view_of(scale_b, of_b);
  } else {
    holders.b = row_scales(scale_b, of_b, shape.n, blocks);
    p.scale_b = view_of(holders.b, Fp8Scaling::kBlock);
  }
}

// A bias that kernels read in units of 16 bytes.
Tensor padded_bias(const Tensor& bias, int64_t n, int64_t unit) {
  const bool contiguous = n <= 1 || bias.stride(0) == 1;
  if (contiguous && aligned(bias) && n % unit == 0) return bias;
  const cpu::NoGradGuard no_grad;
  Tensor padded = new_dense(bias, {round_up(n, unit)});
  Tensor target = torch::stable::narrow(padded, 0, 0, n);
  torch::stable::copy_(target, bias);
  return padded;
}

// ---- the ops ----

// In tiles. NOTE: on an H100, 16 takes 1 to 2 % less where all three sizes are alike.
int raster_width_of(const Fp8MatmulShape& shape) {
  const auto [least, most] = std::minmax({shape.m, shape.n, shape.k});
  return 2 * least > most ? 16 : 8;
}

// d, in rows of ldd elements that begin at units of 16 bytes, = act((a scale_a) (b scale_b)^T +
// bias); added to what it holds where `accumulate`, which fp32 alone can.
struct Target {
  void* d;
  int64_t ldd;
  bool accumulate = false;
};
void launch(const char* op, fp8::RunFn run, const Fp8MatmulShape& shape, const Tensor& a,
            const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
            const std::optional<Tensor>& bias, const Target& target, const LaunchScope& scope) {
  const Tensor dense_a = dense_operand(a), dense_b = dense_operand(b);
  Tensor bias_holder;
  if (bias) bias_holder = padded_bias(*bias, shape.n, 16 / dtype_bytes(shape.out_dtype));
  ScaleHolders holders;
  fp8::Problem p;
  p.m = shape.m, p.n = shape.n, p.k = shape.k;
  p.a = dense_a.const_data_ptr(), p.b = dense_b.const_data_ptr();
  p.lda = dense_a.stride(0), p.ldb = dense_b.stride(0);
  set_scales(scale_a, scale_b, shape, p, holders);
  p.d = target.d, p.ldd = target.ldd, p.accumulate = target.accumulate;
  p.bias = bias ? bias_holder.const_data_ptr() : nullptr;
  p.activation = shape.activation;
  p.raster_width = raster_width_of(shape);
  const char* failure = run(p, scope.context());
  FUSEDOPS_CHECK(failure == nullptr, op, ": the launch failed: ", failure);
}

Tensor product(const char* op, const Fp8MatmulShape& shape, const Tensor& a, const Tensor& b,
               const Tensor& scale_a, const Tensor& scale_b, const std::optional<Tensor>& bias,
               const LaunchScope& scope) {
  const ScalarType type = scalar_type_of(shape.out_dtype);
  if (shape.m == 0 || shape.n == 0) return new_dense(a, {shape.m, shape.n}, type);
  const fp8::RunFn run = kernels_of(shape, scope);
  const cpu::NoGradGuard no_grad;
  if (run == nullptr) return cpu::emulate_fp8_matmul(a, b, scale_a, scale_b, bias, shape);
  // NOTE: TMA wants rows of whole units, so other rows are formed with padding behind them.
  const int64_t columns = round_up(shape.n, 16 / dtype_bytes(shape.out_dtype));
  Tensor y = new_dense(a, {shape.m, columns}, type);
  const Target target{y.mutable_data_ptr(), columns};
  launch(op, run, shape, a, b, scale_a, scale_b, bias, target, scope);
  if (columns == shape.n) return y;
  return dense(torch::stable::narrow(y, 1, 0, shape.n));
}

Tensor fp8_matmul(const Tensor& a,  // (M, K)
                  const Tensor& b,  // (N, K)
                  const Tensor& scale_a, const Tensor& scale_b,
                  const std::optional<Tensor>& bias,  // (N,)
                  int64_t activation, int64_t out_dtype) {
  const char* op = "_fp8_matmul";
  const Fp8MatmulShape shape =
      check_fp8_matmul(op, a, b, scale_a, scale_b, bias, activation, out_dtype);
  const LaunchScope scope(op, a);
  return product(op, shape, a, b, scale_a, scale_b, bias, scope);
}

void fp8_wgrad_(const Tensor& a,  // (M, K)
                const Tensor& b,  // (N, K)
                const Tensor& scale_a, const Tensor& scale_b,
                const Tensor& main_grad,  // (M, N) fp32
                bool accumulate) {
  const char* op = "_fp8_wgrad_";
  const Fp8MatmulShape shape = check_fp8_wgrad(op, a, b, scale_a, scale_b, main_grad);
  const LaunchScope scope(op, a);
  if (shape.m == 0 || shape.n == 0) return;
  const fp8::RunFn run = kernels_of(shape, scope);
  const bool dense = main_grad.is_contiguous() && aligned(main_grad) && shape.n % 4 == 0;
  if (run != nullptr && dense) {
    const Target target{main_grad.mutable_data_ptr(), shape.n, accumulate};
    return launch(op, run, shape, a, b, scale_a, scale_b, std::nullopt, target, scope);
  }
  const Tensor y = product(op, shape, a, b, scale_a, scale_b, std::nullopt, scope);
  const cpu::NoGradGuard no_grad;
  Tensor target = main_grad;
  torch::stable::copy_(target, accumulate ? sum(main_grad, y) : y);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("_fp8_matmul", FUSEDOPS_BOX(&fp8_matmul));
  m.impl("_fp8_wgrad_", FUSEDOPS_BOX(&fp8_wgrad_));
}

}  // namespace fusedops
