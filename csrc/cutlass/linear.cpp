// linear, matmul and the gradients of linear on CUDA.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <tuple>
#include <vector>

#include "common/linear_check.h"
#include "cuda/act_backward.h"
#include "cutlass/gemm_launch.h"

namespace fusedops {
namespace {

using torch::stable::new_empty;

Tensor empty_like_rows(const Tensor& x,  // (..., K)
                       int64_t n) {      // -> (..., n)
  const auto sizes = x.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = n;
  return new_empty(x, shape);
}

MatrixView matrix_view(const Tensor& t) {
  return {t.const_data_ptr(), t.size(0), t.size(1), t.stride(0), t.stride(1)};
}

// A bias that kernels can read in 16-byte accesses.
const Tensor* readable_bias(const std::optional<Tensor>& bias, Tensor& holder) {
  if (!bias) return nullptr;
  const bool contiguous = bias->size(0) <= 1 || bias->stride(0) == 1;
  const bool aligned = reinterpret_cast<uintptr_t>(bias->const_data_ptr()) % 16 == 0;
  holder = contiguous && aligned ? *bias : torch::stable::clone(torch::stable::contiguous(*bias));
  return &holder;
}

// ---- forward ----

Tensor forward(const GemmCall& shape_and_math, const std::optional<Tensor>& bias, const Tensor& y,
               const Tensor* z, const LaunchScope& scope) {
  GemmCall call = shape_and_math;
  Tensor bias_holder;
  call.bias = readable_bias(bias, bias_holder);
  call.epilogue = z ? Epilogue::kPreact : Epilogue::kFused;
  run_gemm(call, y, z, scope);
  return y;
}

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
  Tensor holder;
  return forward(linear_call(x, weight, shape, allow_tf32, holder), bias,
                 empty_like_rows(x, shape.n), nullptr, scope);
}

std::tuple<Tensor, Tensor> linear_preact(const Tensor& x,                    // (..., K)
                                         const Tensor& weight,               // (N, K)
                                         const std::optional<Tensor>& bias,  // (N,)
                                         int64_t activation, bool allow_tf32) {
  const LinearShape shape = check_linear("linear", x, weight, bias, activation);
  const LaunchScope scope("linear", x);
  Tensor holder;
  const Tensor y = empty_like_rows(x, shape.n), z = empty_like_rows(x, shape.n);
  forward(linear_call(x, weight, shape, allow_tf32, holder), bias, y, &z, scope);
  return {y, z};
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
  return forward(matmul_call(a, b, shape, allow_tf32), bias, empty_like_rows(a, shape.n), nullptr,
                 scope);
}

std::tuple<Tensor, Tensor> matmul_preact(const Tensor& a,                    // (M, K)
                                         const Tensor& b,                    // (K, N)
                                         const std::optional<Tensor>& bias,  // (N,)
                                         int64_t activation, bool allow_tf32) {
  const LinearShape shape = check_matmul("matmul", a, b, bias, activation);
  const LaunchScope scope("matmul", a);
  const Tensor y = empty_like_rows(a, shape.n), z = empty_like_rows(a, shape.n);
  forward(matmul_call(a, b, shape, allow_tf32), bias, y, &z, scope);
  return {y, z};
}

// ---- backward ----

// Rows whose elements are contiguous, copied when they are not.
MatrixView dense_rows(const Tensor& tensor, Tensor& holder) {
  MatrixView view = rows_view(tensor, holder);
  if (view.col_stride == 1 && (view.row_stride >= view.cols || view.rows <= 1)) return view;
  holder = torch::stable::contiguous(tensor);
  return {holder.const_data_ptr(), view.rows, view.cols, view.cols, 1};
}

// dz (null: not wanted) and dbias (null: not wanted) from dy and what forward saved.
void run_act_backward(const char* op, const MatrixView& dy, const std::optional<Tensor>& saved,
                      const LinearShape& shape, const Tensor* dz, const Tensor* dbias,
                      const LaunchScope& scope) {
  if (dbias && shape.n > 0 && shape.m == 0) torch::stable::zero_(const_cast<Tensor&>(*dbias));
  if (shape.m == 0 || shape.n == 0 || (!dz && !dbias)) return;
  ActBackward p{.dtype = shape.dtype,
                .activation = shape.activation,
                .rows = shape.m,
                .cols = shape.n,
                .dy = dy.data,
                .dy_stride = dy.rows == 1 ? dy.cols : dy.row_stride};
  Tensor holder;
  if (saved_for_backward(shape.activation) != Saved::kNothing) {
    const MatrixView view = dense_rows(*saved, holder);
    p.saved = view.data;
    p.saved_stride = view.rows == 1 ? view.cols : view.row_stride;
  }
  Tensor scratch, partial;
  if (dz) {
    p.dz = dz->mutable_data_ptr();
  } else if (shape.activation != Activation::kNone) {
    // NOTE: the bias gradient alone still needs act'; the one kernel that has it also writes dz.
    scratch = torch::stable::empty({shape.m, shape.n}, scalar_type_of(shape.dtype), std::nullopt,
                                   dbias->device());
    p.dz = scratch.mutable_data_ptr();
  }
  if (dbias) {
    p.dbias = dbias->mutable_data_ptr();
    p.dbias_fp32 = dbias->scalar_type() == ScalarType::Float;
    partial =
        new_empty(*dbias, {act_backward_workspace(p, scope.facts().sm_count)}, ScalarType::Byte);
    p.partial = partial.mutable_data_ptr();
  }
  const char* failure = act_backward(p, scope.context());
  FUSEDOPS_CHECK(failure == nullptr, op, ": the launch failed: ", failure);
}

std::tuple<Tensor, Tensor> act_backward_bias_grad(const Tensor& dy,                    // (..., N)
                                                  const std::optional<Tensor>& saved,  // (..., N)
                                                  int64_t activation, bool need_dbias,
                                                  bool dbias_fp32) {
  const char* op = "act_backward_bias_grad";
  const LinearShape shape = check_act_backward(op, dy, saved, activation);
  const LaunchScope scope(op, dy);
  const Tensor dz = empty_like_rows(dy, shape.n);
  const Tensor dbias =
      new_empty(dy, {need_dbias ? shape.n : 0}, dbias_fp32 ? ScalarType::Float : dy.scalar_type());
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
  const Tensor dx = need_dx ? empty_like_rows(x, shape.k) : new_empty(x, {0});
  Tensor dweight =
      need_dweight ? new_empty(x, {shape.n, shape.k}, weight_type) : new_empty(x, {0}, weight_type);
  const Tensor dbias = new_empty(x, {need_dbias ? shape.n : 0}, weight_type);

  // dz = dy * act', dbias
  Tensor dy_holder, dz, x_holder;
  MatrixView dz_view = dense_rows(dy, dy_holder);
  const bool need_dz = (need_dx || need_dweight) && shape.activation != Activation::kNone;
  if (need_dz) dz = new_empty(dy, {shape.m, shape.n});
  run_act_backward(op, dz_view, saved, shape, need_dz ? &dz : nullptr,
                   need_dbias ? &dbias : nullptr, scope);
  if (need_dz) dz_view = matrix_view(dz);

  // dx = dz @ weight
  GemmCall call{.op = op,
                .a = dz_view,
                .b = matrix_view(weight),
                .dtype = shape.dtype,
                .allow_tf32 = allow_tf32};
  if (need_dx) run_gemm(call, dx, nullptr, scope);

  // dweight = dz.T @ x
  if (need_dweight) {
    call.a = dz_view.transposed();
    call.b = rows_view(x, x_holder);
    const bool half = shape.dtype == DType::kFloat16 || shape.dtype == DType::kBFloat16;
    call.epilogue = dweight_fp32 && half ? Epilogue::kAccumulator : Epilogue::kFused;
    // NOTE: the fp64 kernels write fp64 only.
    const bool narrow = dweight_fp32 && shape.dtype == DType::kFloat64;
    const Tensor out = narrow ? new_empty(x, {shape.n, shape.k}) : dweight;
    run_gemm(call, out, nullptr, scope);
    if (narrow) torch::stable::copy_(dweight, out);
  }
  return {dx, dweight, dbias};
}

// ---- tuning: a product through a kernel of the caller's choice ----

Tensor gemm_with_config(const Tensor& a,                    // (M, K)
                        const Tensor& b,                    // (K, N)
                        const std::optional<Tensor>& bias,  // (N,)
                        int64_t activation, int64_t family, int64_t config, int64_t splits,
                        int64_t swizzle, int64_t raster, int64_t epilogue) {
  const char* op = "gemm_with_config";
  const LinearShape shape = check_matmul(op, a, b, bias, activation);
  FUSEDOPS_CHECK(family >= 0 && family < kNumFamilies && config >= 0 &&
                     config < num_configs(static_cast<Family>(family)) && splits >= 1 &&
                     raster >= 0 && raster <= 2 && epilogue >= 0 && epilogue < kNumEpilogues,
                 op, ": family, config, splits, raster or epilogue is out of range");
  const LaunchScope scope(op, a);
  GemmCall call = matmul_call(a, b, shape, /*allow_tf32=*/true);
  call.epilogue = static_cast<Epilogue>(epilogue);
  const bool fp32 = call.epilogue == Epilogue::kAccumulator;
  const Tensor y = new_empty(a, {shape.m, shape.n}, fp32 ? ScalarType::Float : a.scalar_type());
  const Tensor z = call.epilogue == Epilogue::kPreact ? empty_like_rows(a, shape.n) : Tensor();
  Tensor bias_holder;
  call.bias = readable_bias(bias, bias_holder);
  const GemmPlan plan{static_cast<Family>(family), static_cast<int>(config),
                      static_cast<int>(splits), static_cast<int>(swizzle),
                      static_cast<Raster>(raster)};
  run_gemm_with_plan(call, plan, y, z.defined() ? &z : nullptr, scope);
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(fusedops_tuning, m) {
  m.def(
      "gemm_with_config(Tensor a, Tensor b, Tensor? bias, int activation, int family, int config, "
      "int splits, int swizzle, int raster, int epilogue) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(fusedops_tuning, CUDA, m) {
  m.impl("gemm_with_config", TORCH_BOX(&gemm_with_config));
}

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("linear", TORCH_BOX(&linear));
  m.impl("linear_preact", TORCH_BOX(&linear_preact));
  m.impl("matmul", TORCH_BOX(&matmul));
  m.impl("matmul_preact", TORCH_BOX(&matmul_preact));
  m.impl("linear_backward", TORCH_BOX(&linear_backward));
  m.impl("act_backward_bias_grad", TORCH_BOX(&act_backward_bias_grad));
}

}  // namespace fusedops
