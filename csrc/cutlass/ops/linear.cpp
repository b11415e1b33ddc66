// linear, matmul and the gradients of linear on CUDA.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/moments.h"
#include "csrc/cutlass/launch/unaligned_gemm.h"
#include "csrc/cutlass/ops/linear_parts.h"
#include "csrc/cutlass/ops/narrow_backward.h"
#include "csrc/cutlass/select/split_k.h"
#include "csrc/cutlass/select/unaligned_plan.h"

namespace fusedops {
namespace {

// ---- forward ----

GemmCall linear_call(const Tensor& x, const Tensor& weight, const LinearShape& shape,
                     bool allow_tf32, Tensor& holder) {
  return {.op = "linear",
          .a = rows_view(x, holder),
          .b = matrix_view(weight).transposed(),
          .dtype = shape.dtype,
          .allow_tf32 = allow_tf32,
          .activation = shape.activation};
}

Tensor linear(const Tensor& x,                    // (..., K)
              const Tensor& weight,               // (N, K)
              const std::optional<Tensor>& bias,  // (N,)
              int64_t activation, bool allow_tf32) {
  const LinearShape shape = check_linear("linear", x, weight, bias, activation);
  const LaunchScope scope("linear", x);
  const Tensor y = empty_like_rows(x, shape.n);
  Tensor holder;
  run_linear(linear_call(x, weight, shape, allow_tf32, holder), bias, y, nullptr, scope);
  return y;
}

std::tuple<Tensor, Tensor> linear_preact(const Tensor& x,                    // (..., K)
                                         const Tensor& weight,               // (N, K)
                                         const std::optional<Tensor>& bias,  // (N,)
                                         int64_t activation, bool allow_tf32) {
  const LinearShape shape = check_linear("linear", x, weight, bias, activation);
  const LaunchScope scope("linear", x);
  Tensor holder;
  const Tensor y = empty_like_rows(x, shape.n), z = empty_like_rows(x, shape.n);
  run_linear(linear_call(x, weight, shape, allow_tf32, holder), bias, y, &z, scope);
  return {y, z};
}

std::tuple<Tensor, Tensor> linear_moments(const Tensor& x,         // (..., K)
                                          const Tensor& weight) {  // (N, K)
  const char* op = "linear_moments";
  const LinearShape shape = check_linear(op, x, weight, std::nullopt, 0);
  const LaunchScope scope(op, x);
  const Tensor y = empty_like_rows(x, shape.n), moments = new_moments(y, shape.m, shape.n);
  Tensor holder;
  const GemmCall call = linear_call(x, weight, shape, /*allow_tf32=*/false, holder);
  if (run_gemm_moments(call, y, moments, scope)) return {y, moments};
  run_linear(call, std::nullopt, y, nullptr, scope);
  fill_moments(y, moments);
  return {y, moments};
}

GemmCall matmul_call(const Tensor& a, const Tensor& b, const LinearShape& shape, bool allow_tf32) {
  return {.op = "matmul",
          .a = matrix_view(a),
          .b = matrix_view(b),
          .dtype = shape.dtype,
          .allow_tf32 = allow_tf32,
          .activation = shape.activation};
}

Tensor matmul(const Tensor& a,                    // (M, K)
              const Tensor& b,                    // (K, N)
              const std::optional<Tensor>& bias,  // (N,)
              int64_t activation, bool allow_tf32) {
  const LinearShape shape = check_matmul("matmul", a, b, bias, activation);
  const LaunchScope scope("matmul", a);
  const Tensor y = empty_like_rows(a, shape.n);
  run_linear(matmul_call(a, b, shape, allow_tf32), bias, y, nullptr, scope);
  return y;
}

std::tuple<Tensor, Tensor> matmul_preact(const Tensor& a,                    // (M, K)
                                         const Tensor& b,                    // (K, N)
                                         const std::optional<Tensor>& bias,  // (N,)
                                         int64_t activation, bool allow_tf32) {
  const LinearShape shape = check_matmul("matmul", a, b, bias, activation);
  const LaunchScope scope("matmul", a);
  const Tensor y = empty_like_rows(a, shape.n), z = empty_like_rows(a, shape.n);
  run_linear(matmul_call(a, b, shape, allow_tf32), bias, y, &z, scope);
  return {y, z};
}

// ---- backward ----

std::tuple<Tensor, Tensor> act_backward_bias_grad(const Tensor& dy,                    // (..., N)
                                                  const std::optional<Tensor>& saved,  // (..., N)
                                                  int64_t activation, bool need_dbias,
                                                  bool dbias_fp32) {
  const char* op = "act_backward_bias_grad";
  const LinearShape shape = check_act_backward(op, dy, saved, activation);
  const LaunchScope scope(op, dy);
  const Tensor dz = empty_like_rows(dy, shape.n);
  const Tensor dbias =
      new_dense(dy, {need_dbias ? shape.n : 0}, dbias_fp32 ? ScalarType::Float : dy.scalar_type());
  Tensor holder;
  const MatrixView rows = dense_rows(dy, holder);
  run_act_backward(op, rows, saved, shape, &dz, need_dbias ? &dbias : nullptr, scope);
  return {dz, dbias};
}

std::tuple<Tensor, Tensor, Tensor> linear_backward(const Tensor& dy,                    // (..., N)
                                                   const Tensor& x,                     // (..., K)
                                                   const Tensor& weight,                // (N, K)
                                                   const std::optional<Tensor>& saved,  // (..., N)
                                                   int64_t activation, bool need_dx,
                                                   bool need_dweight, bool need_dbias,
                                                   bool dweight_fp32, bool allow_tf32) {
  const char* op = "linear_backward";
  const LinearShape shape = check_linear_backward(op, dy, x, weight, saved, activation);
  const LaunchScope scope(op, dy);
  const ScalarType weight_type = dweight_fp32 ? ScalarType::Float : x.scalar_type();
  const Tensor dx = need_dx ? empty_like_rows(x, shape.k) : new_dense(x, {0});
  Tensor dweight =
      need_dweight ? new_dense(x, {shape.n, shape.k}, weight_type) : new_dense(x, {0}, weight_type);
  const Tensor dbias = new_dense(x, {need_dbias ? shape.n : 0}, weight_type);

  Tensor dy_holder, saved_holder, x_holder, dz;
  MatrixView dz_view = dense_rows(dy, dy_holder);
  const MatrixView x_view = need_dweight ? rows_view(x, x_holder) : MatrixView{};

  // Few features: one kernel forms all of it in one pass over the rows.
  const bool reads_saved = saved_for_backward(shape.activation) != Saved::kNothing;
  const NarrowOperands operands{
      .dy = dz_view,
      .saved = reads_saved ? dense_rows(*saved, saved_holder) : MatrixView{},
      .x = x_view,
      .weight = matrix_view(weight)};
  const NarrowGradients wanted{need_dx ? &dx : nullptr, need_dweight ? &dweight : nullptr,
                               need_dbias ? &dbias : nullptr};
  if (run_narrow_backward(op, shape, operands, wanted, scope)) return {dx, dweight, dbias};

  // dz = dy * act', dbias
  const bool need_dz = (need_dx || need_dweight) && shape.activation != Activation::kNone;
  if (need_dz) dz = new_dense(dy, {shape.m, shape.n});
  run_act_backward(op, dz_view, saved, shape, need_dz ? &dz : nullptr,
                   need_dbias ? &dbias : nullptr, scope);
  if (need_dz) dz_view = matrix_view(dz);
  GemmCall call{.op = op,
                .a = dz_view,
                .b = matrix_view(weight),
                .dtype = shape.dtype,
                .allow_tf32 = allow_tf32};
  Tensor rows_holder;
  call.a = dz_view = gradient_rows(call, need_dx, need_dweight ? &x_view : nullptr, dweight_fp32,
                                   rows_holder, scope);

  // dx = dz @ weight
  if (need_dx) run_gemm(call, dx, nullptr, scope);

  // dweight = dz.T @ x
  if (need_dweight) run_wgrad(call, dz_view, x_view, dweight, scope);
  return {dx, dweight, dbias};
}

Tensor linear_input_backward(const Tensor& dz,      // (..., N)
                             const Tensor& weight,  // (N, K)
                             const Tensor& added,   // (..., K)
                             bool allow_tf32) {
  const char* op = "linear_input_backward";
  const LinearShape shape = check_linear_input_backward(op, dz, weight, added);
  const LaunchScope scope(op, dz);
  Tensor holder;
  const GemmCall call{.op = op,
                      .a = rows_view(dz, holder),
                      .b = matrix_view(weight),
                      .dtype = shape.dtype,
                      .allow_tf32 = allow_tf32};
  return run_linear_added(call, std::nullopt, added, empty_like_rows(dz, shape.k), scope);
}

void linear_wgrad_(const Tensor& dz,         // (..., N)
                   const Tensor& x,          // (..., K)
                   const Tensor& main_grad,  // (N, K) fp32
                   bool accumulate, bool allow_tf32) {
  const char* op = "linear_wgrad_";
  const LinearShape shape = check_linear_wgrad(op, dz, x, main_grad);
  const LaunchScope scope(op, dz);
  Tensor dz_holder, x_holder, rows_holder;
  const MatrixView x_view = rows_view(x, x_holder);
  const GemmCall call{.op = op,
                      .a = rows_view(dz, dz_holder),
                      .b = x_view,
                      .dtype = shape.dtype,
                      .allow_tf32 = allow_tf32,
                      .accumulate = accumulate};
  const MatrixView rows =
      gradient_rows(call, /*own=*/false, &x_view, /*fp32=*/true, rows_holder, scope);
  run_wgrad(call, rows, x_view, main_grad, scope);
}

// ---- tuning: a product through a kernel of the caller's choice ----

Tensor gemm_with_config(const Tensor& a,                    // (M, K)
                        const Tensor& b,                    // (K, N)
                        const std::optional<Tensor>& bias,  // (N,)
                        int64_t activation, int64_t family, int64_t config, int64_t splits,
                        int64_t swizzle, int64_t epilogue) {
  const char* op = "gemm_with_config";
  const LinearShape shape = check_matmul(op, a, b, bias, activation);
  FUSEDOPS_CHECK(family >= 0 && family < kNumFamilies && config >= 0 &&
                     config < num_configs(static_cast<Family>(family)) && splits >= 0 &&
                     swizzle >= 1 && epilogue >= 0 &&
                     epilogue <= static_cast<int64_t>(Epilogue::kAccumulator),
                 op, ": family, config, splits, swizzle or epilogue is out of range");
  FUSEDOPS_CHECK(
      splits != 0 || (static_cast<Family>(family) == Family::kSm90 && a.element_size() == 2), op,
      ": 0 splits (a stream-K tail) need a kernel of sm90 and 16-bit operands");
  const LaunchScope scope(op, a);
  GemmCall call = matmul_call(a, b, shape, /*allow_tf32=*/true);
  call.epilogue = static_cast<Epilogue>(epilogue);
  const bool fp32 = call.epilogue == Epilogue::kAccumulator;
  const Tensor y = new_dense(a, {shape.m, shape.n}, fp32 ? ScalarType::Float : a.scalar_type());
  const Tensor z = call.epilogue == Epilogue::kPreact ? empty_like_rows(a, shape.n) : Tensor();
  Tensor bias_holder;
  call.bias = readable_bias(bias, bias_holder);
  const GemmPlan plan = plan_from_numbers(static_cast<Family>(family), static_cast<int>(config),
                                          static_cast<int>(splits), static_cast<int>(swizzle));
  run_gemm_with_plan(call, plan, y, z.defined() ? &z : nullptr, scope);
  return y;
}

Tensor gemm_unaligned(const Tensor& a,                    // (M, K)
                      const Tensor& b,                    // (K, N)
                      const std::optional<Tensor>& bias,  // (N,)
                      int64_t activation, int64_t tile, int64_t splits, int64_t epilogue) {
  const char* op = "gemm_unaligned";
  const LinearShape shape = check_matmul(op, a, b, bias, activation);
  FUSEDOPS_CHECK(tile >= 0 && tile < unaligned::num_tiles(shape.dtype, /*hopper=*/true) &&
                     splits >= 1 && splits <= kMostSlices && epilogue >= 0 &&
                     epilogue <= static_cast<int64_t>(Epilogue::kAccumulator),
                 op, ": tile, splits or epilogue is out of range");
  const LaunchScope scope(op, a);
  GemmCall call = matmul_call(a, b, shape, /*allow_tf32=*/false);
  call.epilogue = static_cast<Epilogue>(epilogue);
  const bool fp32 = call.epilogue == Epilogue::kAccumulator;
  const Tensor y = new_dense(a, {shape.m, shape.n}, fp32 ? ScalarType::Float : a.scalar_type());
  const Tensor z = call.epilogue == Epilogue::kPreact ? empty_like_rows(a, shape.n) : Tensor();
  Tensor bias_holder;
  call.bias = readable_bias(bias, bias_holder);
  run_unaligned_tile(call, static_cast<int>(tile), static_cast<int>(splits), y,
                     z.defined() ? &z : nullptr, scope);
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(fusedops_tuning, m) {
  m.def(
      "gemm_with_config(Tensor a, Tensor b, Tensor? bias, int activation, int family, int config, "
      "int splits, int swizzle, int epilogue) -> Tensor");
  m.def(
      "gemm_unaligned(Tensor a, Tensor b, Tensor? bias, int activation, int tile, int splits, "
      "int epilogue) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(fusedops_tuning, CUDA, m) {
  m.impl("gemm_with_config", FUSEDOPS_BOX(&gemm_with_config));
  m.impl("gemm_unaligned", FUSEDOPS_BOX(&gemm_unaligned));
}

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("linear", FUSEDOPS_BOX(&linear));
  m.impl("linear_preact", FUSEDOPS_BOX(&linear_preact));
  m.impl("linear_moments", FUSEDOPS_BOX(&linear_moments));
  m.impl("matmul", FUSEDOPS_BOX(&matmul));
  m.impl("matmul_preact", FUSEDOPS_BOX(&matmul_preact));
  m.impl("linear_wgrad_", FUSEDOPS_BOX(&linear_wgrad_));
  m.impl("linear_backward", FUSEDOPS_BOX(&linear_backward));
  m.impl("linear_input_backward", FUSEDOPS_BOX(&linear_input_backward));
  m.impl("act_backward_bias_grad", FUSEDOPS_BOX(&act_backward_bias_grad));
}

}  // namespace fusedops
