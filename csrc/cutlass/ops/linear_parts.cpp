#include "csrc/cutlass/ops/linear_parts.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <vector>

#include "csrc/common/host/aten.h"
#include "csrc/cutlass/configs/alignment.h"
#include "csrc/cutlass/launch/unaligned_gemm.h"
#include "csrc/cutlass/passes/act_backward.h"

namespace fusedops {

Tensor empty_like_rows(const Tensor& x,  // (..., K)
                       int64_t n) {      // -> (..., n)
  const auto sizes = x.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = n;
  return new_dense(x, shape);
}

MatrixView matrix_view(const Tensor& t) {
  return {t.const_data_ptr(), t.size(0), t.size(1), t.stride(0), t.stride(1)};
}

const Tensor* readable_bias(const std::optional<Tensor>& bias, Tensor& holder) {
  if (!bias) return nullptr;
  const bool contiguous = bias->size(0) <= 1 || bias->stride(0) == 1;
  const bool aligned = aligned16(bias->const_data_ptr());
  holder = contiguous && aligned ? *bias : torch::stable::clone(dense(*bias));
  return &holder;
}

void run_linear(const GemmCall& shape_and_math, const std::optional<Tensor>& bias, const Tensor& y,
                const Tensor* z, const LaunchScope& scope) {
  GemmCall call = shape_and_math;
  Tensor bias_holder;
  call.bias = readable_bias(bias, bias_holder);
  call.epilogue = z ? Epilogue::kPreact : Epilogue::kFused;
  run_gemm(call, y, z, scope);
}

Tensor run_linear_added(const GemmCall& call, const std::optional<Tensor>& bias,
                        const Tensor& added, const Tensor& y, const LaunchScope& scope) {
  if (!takes_apart(call, Epilogue::kResidual, Passes{1, 3}, scope)) {
    Tensor bias_holder;
    GemmCall fused = call;
    fused.bias = readable_bias(bias, bias_holder);
    const Tensor contiguous = dense(added);
    fused.residual = &contiguous;
    fused.epilogue = Epilogue::kResidual;
    if (run_gemm_fused(fused, y, scope)) return y;
  }
  run_linear(call, bias, y, nullptr, scope);
  return sum(y, added);
}

MatrixView dense_rows(const Tensor& tensor, Tensor& holder) {
  MatrixView view = rows_view(tensor, holder);
  if (view.col_stride == 1 && (view.row_stride >= view.cols || view.rows <= 1)) return view;
  holder = dense(tensor);
  return {holder.const_data_ptr(), view.rows, view.cols, view.cols, 1};
}

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
    scratch = new_dense(*dbias, {shape.m, shape.n}, scalar_type_of(shape.dtype));
    p.dz = scratch.mutable_data_ptr();
  }
  if (dbias) {
    p.dbias = dbias->mutable_data_ptr();
    p.dbias_fp32 = dbias->scalar_type() == ScalarType::Float;
    partial =
        new_dense(*dbias, {act_backward_workspace(p, scope.facts().sm_count)}, ScalarType::Byte);
    p.partial = partial.mutable_data_ptr();
  }
  const char* failure = act_backward(p, scope.context());
  FUSEDOPS_CHECK(failure == nullptr, op, ": the launch failed: ", failure);
}

namespace {

bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

// The product through memory for some of dweight's rows at a time: what no kernel writes or adds
// to itself.
void run_wgrad_in_blocks(const GemmCall& call, const Tensor& dweight, const LaunchScope& scope) {
  constexpr int64_t kBlockBytes = int64_t{1} << 28;
  const ScalarType dtype = call.dtype == DType::kFloat64 ? ScalarType::Double : ScalarType::Float;
  const int64_t columns = dweight.size(1), all = dweight.size(0);
  const int64_t fitting = kBlockBytes / (std::max<int64_t>(columns, 1) * 8) / 128 * 128;
  const int64_t most = std::max<int64_t>(fitting, 128);
  for (int64_t row = 0; row < all; row += most) {
    GemmCall block = call;
    block.accumulate = false;
    block.epilogue = is_half(call.dtype) ? Epilogue::kAccumulator : Epilogue::kFused;
    block.a.rows = std::min(most, all - row);
    block.a.data =
        static_cast<const char*>(call.a.data) + row * call.a.row_stride * dtype_bytes(call.dtype);
    const Tensor out = new_dense(dweight, {block.a.rows, columns}, dtype);
    run_gemm(block, out, nullptr, scope);
    Tensor rows = dweight, target = torch::stable::narrow(rows, 0, row, block.a.rows);
    torch::stable::copy_(target, call.accumulate ? sum(target, out) : out);
  }
}

}  // namespace

GemmCall wgrad_call(const GemmCall& shape_and_math, const MatrixView& dz, const MatrixView& x,
                    bool fp32) {
  GemmCall call = shape_and_math;
  call.a = dz.transposed();
  call.b = x;
  call.activation = Activation::kNone;
  call.epilogue = fp32 && is_half(call.dtype) ? Epilogue::kAccumulator : Epilogue::kFused;
  return call;
}

MatrixView gradient_rows(const GemmCall& call, bool own, const MatrixView* x, bool fp32,
                         Tensor& holder, const LaunchScope& scope) {
  if (are_addressable(call.a, call.dtype, scope)) return call.a;
  const MatrixView padded = padded_rows(call.a, call.dtype);
  const auto wants_padded = [&](GemmCall product, const MatrixView& a) {
    if (reads_in_place(product, scope)) return false;
    product.a = a;
    return reads_in_place(product, scope);
  };
  const bool copy = (own && wants_padded(call, padded)) ||
                    (x && wants_padded(wgrad_call(call, call.a, *x, fp32), padded.transposed()));
  if (!copy) return call.a;
  return addressable_rows(call.op, call.a, call.dtype, holder, scope);
}

void run_wgrad(const GemmCall& shape_and_math, const MatrixView& dz, const MatrixView& x,
               const Tensor& dweight, const LaunchScope& scope) {
  const bool half = is_half(shape_and_math.dtype);
  const bool fp32 = dweight.scalar_type() == ScalarType::Float;
  const GemmCall call = wgrad_call(shape_and_math, dz, x, fp32);
  // NOTE: the fp64 kernels write fp64 only, 16-bit operands alone accumulate, outputs are dense.
  const bool narrow = fp32 && call.dtype == DType::kFloat64;
  const bool dense = dweight.is_contiguous() && dz.rows > 0;
  if (half && !fp32 && call.accumulate) {
    if (dense && run_gemm_adding(call, dweight, scope)) return;
  } else if (dense && !narrow && (half || !call.accumulate)) {
    return run_gemm(call, dweight, nullptr, scope);
  }
  run_wgrad_in_blocks(call, dweight, scope);
}

Tensor sum(const Tensor& a, const Tensor& b) {
  const cpu::NoGradGuard no_grad;
  return torch::stable::subtract(a, b, -1.0);  // the stable ABI has no add
}

}  // namespace fusedops
