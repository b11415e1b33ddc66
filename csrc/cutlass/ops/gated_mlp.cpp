// gated_mlp on CUDA: y = (act(gate) * up) @ w_down.T + b_down + residual. Gate and up lie in one
// tensor: (2, ..., H) from two weights, (..., 2, H) from one packed weight and one product.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <tuple>
#include <vector>

#include "csrc/common/checks/mlp_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/cutlass/launch/gated_gemm.h"
#include "csrc/cutlass/launch/thin_gemm.h"
#include "csrc/cutlass/ops/mlp_parts.h"

namespace fusedops {
namespace {

using torch::stable::select;

// An empty (2, ..., hidden), or (..., 2, hidden) where packed, with the leading dimensions of x.
Tensor empty_stacked(const Tensor& x, int64_t hidden, bool packed) {
  const auto sizes = x.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = hidden;
  shape.insert(packed ? shape.end() - 1 : shape.begin(), 2);
  return new_dense(x, shape);
}

// Half `index` of a contiguous stacked tensor as a matrix (m, hidden).
MatrixView half_view(const Tensor& stacked, const MlpShape& shape, bool packed, int64_t index) {
  const int64_t step = packed ? shape.hidden : shape.m * shape.hidden;
  const char* data = static_cast<const char*>(stacked.const_data_ptr());
  return {data + index * step * dtype_bytes(shape.dtype), shape.m, shape.hidden,
          packed ? 2 * shape.hidden : shape.hidden, 1};
}

// Rows [first, first + count) of a matrix.
MatrixView rows_of(const MatrixView& matrix, int64_t first, int64_t count, DType dtype) {
  MatrixView part = matrix;
  part.data =
      static_cast<const char*>(matrix.data) + first * matrix.row_stride * dtype_bytes(dtype);
  part.rows = count;
  return part;
}

GatedGemm gated_gemm(const MlpShape& shape, int64_t n, int64_t k, const Tensor& d) {
  GatedGemm p;
  p.m = shape.m;
  p.n = p.ldd = n;
  p.k = k;
  p.d = d.numel() > 0 ? d.mutable_data_ptr() : nullptr;
  p.dtype = shape.dtype;
  return p;
}

void place_gate_and_up(GatedGemm& p, const MatrixView& gate, const MatrixView& up) {
  p.gate = const_cast<void*>(gate.data);
  p.up = const_cast<void*>(up.data);
  p.gate_ld = gate.row_stride;
}

// What the products of x with both weights have in common; w_up is empty where w_gate holds both.
struct GatedInputs {
  const char* op;
  const Tensor &x, &w_gate;  // (..., K), (H or 2H, K)
  const std::optional<Tensor>&w_up, &b_gate, &b_up;
  bool allow_tf32;
};

// both = x @ w.T + b for both weights: two products, or one of the packed weight.
void run_gated_linear(const GatedInputs& in, const MlpShape& shape, const Tensor& both,
                      const LaunchScope& scope) {
  Tensor holder;
  GemmCall call{.op = in.op,
                .a = rows_view(in.x, holder),
                .b = matrix_view(in.w_gate).transposed(),
                .dtype = shape.dtype,
                .allow_tf32 = in.allow_tf32};
  run_linear(call, in.b_gate, in.w_up ? select(both, 0, 0) : both, nullptr, scope);
  if (in.w_up) {
    call.b = matrix_view(*in.w_up).transposed();
    run_linear(call, in.b_up, select(both, 0, 1), nullptr, scope);
  }
}

// h = act(gate) * up in one kernel, and gate and up where `both` is not empty. False where there is
// none.
bool run_gated_forward(const GatedInputs& in, const MlpShape& shape, const Tensor& both,
                       const Tensor& h, const LaunchScope& scope) {
  if (in.b_gate || in.b_up) return false;
  const bool packed = !in.w_up;
  GatedGemm p = gated_gemm(shape, shape.hidden, shape.k, h);
  p.activation = shape.activation;
  if (both.numel() > 0) {
    place_gate_and_up(p, half_view(both, shape, packed, 0), half_view(both, shape, packed, 1));
  }
  const auto weight = [&](const Tensor& w, int64_t first) {
    return rows_of(matrix_view(w), first, shape.hidden, shape.dtype).transposed();
  };
  Tensor holder;
  const MatrixView x = rows_view(in.x, holder);
  const GemmCall gate{.op = in.op,
                      .a = x,
                      .b = weight(in.w_gate, 0),
                      .dtype = shape.dtype,
                      .allow_tf32 = in.allow_tf32};
  // NOTE: a tile has 64 rows and more: one reads the weights faster by a kernel of its own.
  if (shape.m == 1 && takes_thin(gate, scope)) return false;
  const GatedOperands operands{x, gate.b, std::nullopt,
                               packed ? weight(in.w_gate, shape.hidden) : weight(*in.w_up, 0)};
  return run_gated_gemm(in.op, GatedProduct::kForward, p, operands, scope);
}

Tensor gated_linear(const Tensor& x,                      // (..., K)
                    const Tensor& w_gate,                 // (H or 2H, K)
                    const std::optional<Tensor>& w_up,    // (H, K)
                    const std::optional<Tensor>& b_gate,  // (H or 2H,)
                    const std::optional<Tensor>& b_up,    // (H,)
                    bool allow_tf32) {
  const char* op = "gated_linear";
  const MlpShape shape = check_gated_linear(op, x, w_gate, w_up, b_gate, b_up);
  const LaunchScope scope(op, x);
  const Tensor both = empty_stacked(x, shape.hidden, !w_up);
  run_gated_linear({op, x, w_gate, w_up, b_gate, b_up, allow_tf32}, shape, both, scope);
  return both;
}

std::tuple<Tensor, Tensor> gated_mlp_forward(const Tensor& x,                        // (..., K)
                                             const Tensor& w_gate,                   // (H or 2H, K)
                                             const std::optional<Tensor>& w_up,      // (H, K)
                                             const std::optional<Tensor>& b_gate,    // (H or 2H,)
                                             const std::optional<Tensor>& b_up,      // (H,)
                                             const Tensor& w_down,                   // (N, H)
                                             const std::optional<Tensor>& b_down,    // (N,)
                                             const std::optional<Tensor>& residual,  // (..., N)
                                             int64_t activation, bool save, bool allow_tf32) {
  const MlpShape shape = check_gated_mlp("gated_mlp", x, w_gate, w_up, b_gate, b_up, w_down, b_down,
                                         residual, activation);
  const LaunchScope scope("gated_mlp", x);
  const bool packed = !w_up;

  // gate, up and h = act(gate) * up: one kernel, or a product each and a pass
  const GatedInputs in{"gated_mlp", x, w_gate, w_up, b_gate, b_up, allow_tf32};
  const Tensor h = empty_like_rows(x, shape.hidden);
  const auto both = [&] { return empty_stacked(x, shape.hidden, packed); };
  Tensor saved = save ? both() : new_dense(x, {0});
  if (!run_gated_forward(in, shape, saved, h, scope)) {
    if (!save) saved = both();
    run_gated_linear(in, shape, saved, scope);
    const MatrixView up = half_view(saved, shape, packed, 1);
    run_gated_act(in.op, shape, half_view(saved, shape, packed, 0), &up, h, scope);
  }

  // y = h @ w_down.T + b_down + residual
  const GemmCall call{
      .op = "gated_mlp", .a = {}, .b = {}, .dtype = shape.dtype, .allow_tf32 = allow_tf32};
  const Tensor y = run_down(call, h, w_down, b_down, residual, empty_like_rows(x, shape.n), scope);
  return {y, save ? saved : new_dense(x, {0})};
}

// dgate and dup from dh (M, H), the products gate and up, and h and dbias where not null. Outputs
// may overwrite inputs of the same strides.
struct GatedGradients {
  const Tensor& dh;
  MatrixView gate, up, dgate, dup;
  const Tensor* h = nullptr;      // (M, H) contiguous
  const Tensor* dbias = nullptr;  // (2, H)
};

void run_gated_act_backward(const char* op, const MlpShape& shape, const GatedGradients& g,
                            const LaunchScope& scope) {
  if (g.dbias && shape.m == 0) torch::stable::zero_(const_cast<Tensor&>(*g.dbias));
  if (shape.m == 0 || shape.hidden == 0) return;
  GatedActBackward p{.dtype = shape.dtype,
                     .activation = shape.activation,
                     .rows = shape.m,
                     .cols = shape.hidden,
                     .dh = g.dh.const_data_ptr(),
                     .gate = g.gate.data,
                     .gate_stride = g.gate.row_stride,
                     .up = g.up.data,
                     .up_stride = g.up.row_stride,
                     .dgate = const_cast<void*>(g.dgate.data),
                     .dgate_stride = g.dgate.row_stride,
                     .dup = const_cast<void*>(g.dup.data),
                     .dup_stride = g.dup.row_stride,
                     .h = g.h ? g.h->mutable_data_ptr() : nullptr};
  Tensor partial;
  if (g.dbias) {
    p.dbias = g.dbias->mutable_data_ptr();
    p.dbias_fp32 = g.dbias->scalar_type() == ScalarType::Float;
    partial = new_dense(g.dh, {gated_act_workspace(p, scope.facts().sm_count)}, ScalarType::Byte);
    p.partial = partial.mutable_data_ptr();
  }
  const char* failure = gated_act_backward(p, scope.context());
  FUSEDOPS_CHECK(failure == nullptr, op, ": the launch failed: ", failure);
}

// The backward of the second product with the gate's.
struct GatedBackward {
  const char* op;
  const Tensor &dy, &saved, &w_down;  // (..., N), (2, ..., H) or (..., 2, H), (N, H)
  int64_t activation;
  bool packed, need_dz, need_dbias, need_dw_down, need_db_down, parameters_fp32, allow_tf32;
  bool owned = false;                 // saved becomes dz
  const Tensor* main_grad = nullptr;  // where dw_down goes instead
  bool accumulate = false;            // it is added there
};

// The gradients over gate and up, and h, in one kernel; dbias in a pass. False where there is none.
bool run_gated_gradient(const GatedBackward& b, const MlpShape& shape, const MatrixView& dy,
                        const Tensor& saved, const Tensor& hidden, const Tensor& dbias,
                        const LaunchScope& scope) {
  GatedGemm p = gated_gemm(shape, shape.hidden, shape.n, hidden);
  p.activation = shape.activation;
  if (!b.need_dw_down) p.d = nullptr;
  const auto half = [&](int64_t index) { return half_view(saved, shape, b.packed, index); };
  place_gate_and_up(p, half(0), half(1));
  const GatedOperands operands{dy, matrix_view(b.w_down), {}, {}};
  if (!run_gated_gemm(b.op, GatedProduct::kGradient, p, operands, scope)) return false;
  LinearShape sums = shape.first();
  sums.activation = Activation::kNone;
  for (int64_t i = 0; i < 2 && b.need_dbias; ++i) {
    const Tensor sum = select(dbias, 0, i);
    run_act_backward(b.op, half(i), std::nullopt, sums, nullptr, &sum, scope);
  }
  return true;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> run(const GatedBackward& b) {
  const MlpShape shape =
      check_gated_mlp_backward(b.op, b.dy, b.saved, b.w_down, b.activation, b.packed);
  if (b.main_grad) check_main_grad(b.op, *b.main_grad, shape.n, shape.hidden, b.dy);
  const LaunchScope scope(b.op, b.dy);
  const auto gradient = [&](bool needed, std::initializer_list<int64_t> sizes) {
    return parameter_gradient(b.dy, needed, sizes, b.parameters_fp32);
  };
  const Tensor dbias = gradient(b.need_dbias, {2, shape.hidden});
  const Tensor dw_down = gradient(b.need_dw_down && !b.main_grad, {shape.n, shape.hidden});
  const Tensor db_down = gradient(b.need_db_down, {shape.n});
  const bool any_dz = b.need_dz || b.need_dbias;
  const Tensor saved = dense(b.saved);
  const Tensor dz = b.owned  ? saved
                    : any_dz ? empty_stacked(b.dy, shape.hidden, b.packed)
                             : new_dense(b.dy, {0});
  const auto half = [&](const Tensor& both, int64_t index) {
    return half_view(both, shape, b.packed, index);
  };
  Tensor dy_holder, rows_holder, holder;
  const MatrixView up = half(saved, 1);
  GemmCall call{b.op, dense_rows(b.dy, dy_holder), matrix_view(b.w_down), shape.dtype,
                b.allow_tf32};

  // dgate, dup, dbias and h from dh = dy @ w_down: one kernel over what is owned, or the product,
  // which h replaces, and a pass
  const Tensor hidden =
      any_dz || b.need_dw_down ? empty_like_rows(b.dy, shape.hidden) : new_dense(b.dy, {0});
  const MatrixView hidden_rows = rows_view(hidden, holder);
  const MatrixView dy = call.a =
      gradient_rows(call, any_dz, b.need_dw_down ? &hidden_rows : nullptr,
                    b.main_grad || b.parameters_fp32, rows_holder, scope);
  const bool fused = b.owned && run_gated_gradient(b, shape, dy, saved, hidden, dbias, scope);
  if (any_dz && !fused) {
    run_gemm(call, hidden, nullptr, scope);
    const Tensor* h = b.need_dw_down ? &hidden : nullptr;
    const Tensor* sums = b.need_dbias ? &dbias : nullptr;
    run_gated_act_backward(b.op, shape,
                           {hidden, half(saved, 0), up, half(dz, 0), half(dz, 1), h, sums}, scope);
  } else if (b.need_dw_down && !fused) {
    run_gated_act(b.op, shape, half(saved, 0), &up, hidden, scope);
  }

  // dw_down = dy.T @ h, db_down = sum of dy
  call.accumulate = b.accumulate && b.main_grad;
  const Tensor& target = b.main_grad ? *b.main_grad : dw_down;
  if (b.need_dw_down) run_wgrad(call, dy, hidden_rows, target, scope);
  if (b.need_db_down) {
    run_act_backward(b.op, dy, std::nullopt, shape.second(), nullptr, &db_down, scope);
  }
  return {dz, dbias, dw_down, db_down};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> gated_mlp_backward(
    const Tensor& dy,      // (..., N)
    const Tensor& saved,   // (2, ..., H) or (..., 2, H)
    const Tensor& w_down,  // (N, H)
    int64_t activation, bool packed, bool need_dz, bool need_dbias, bool need_dw_down,
    bool need_db_down, bool parameters_fp32, bool allow_tf32) {
  auto results = run({"gated_mlp_backward", dy, saved, w_down, activation, packed, need_dz,
                      need_dbias, need_dw_down, need_db_down, parameters_fp32, allow_tf32});
  if (!need_dz) std::get<0>(results) = new_dense(dy, {0});
  return results;
}

std::tuple<Tensor, Tensor, Tensor> gated_mlp_backward_(const Tensor& dy,      // (..., N)
                                                       const Tensor& saved,   // becomes dz
                                                       const Tensor& w_down,  // (N, H)
                                                       const std::optional<Tensor>& main_grad,
                                                       bool accumulate, int64_t activation,
                                                       bool packed, bool need_dbias,
                                                       bool need_dw_down, bool need_db_down,
                                                       bool parameters_fp32, bool allow_tf32) {
  const auto [dz, dbias, dw_down, db_down] =
      run({"gated_mlp_backward_", dy, saved, w_down, activation, packed, true, need_dbias,
           need_dw_down, need_db_down, parameters_fp32, allow_tf32, true,
           main_grad ? &*main_grad : nullptr, accumulate});
  if (dz.const_data_ptr() != saved.const_data_ptr()) {  // saved has strides of its own
    Tensor target = saved;
    torch::stable::copy_(target, dz);
  }
  return {dbias, dw_down, db_down};
}

// dz as its products read it: of both weights where one tensor holds them, else of each.
struct InputGradients {
  MatrixView gate, up;
  Tensor gate_holder, up_holder;
};

// dx = dgate @ w_gate + dup @ w_up: one product where both pairs are packed or a kernel takes both.
Tensor input_gradient(GemmCall call, const MlpShape& shape, const InputGradients& dz,
                      const Tensor& x, const Tensor& w_gate, const std::optional<Tensor>& w_up,
                      const LaunchScope& scope) {
  const Tensor dx = empty_like_rows(x, shape.k);
  const auto product = [&](const MatrixView& a, const MatrixView& b, const Tensor& out) {
    call.a = a;
    call.b = b;
    run_gemm(call, out, nullptr, scope);
    return out;
  };
  const MatrixView gate_rows = matrix_view(w_gate);
  if (!w_up) return product(dz.gate, gate_rows, dx);
  const MatrixView up_rows = matrix_view(*w_up);
  const GatedOperands operands{dz.gate, gate_rows, dz.up, up_rows};
  const GatedGemm both = gated_gemm(shape, shape.k, shape.hidden, dx);
  if (run_gated_gemm(call.op, GatedProduct::kInput, both, operands, scope)) return dx;
  return sum(product(dz.gate, gate_rows, dx), product(dz.up, up_rows, empty_like_rows(x, shape.k)));
}

std::tuple<Tensor, Tensor, Tensor> gated_input_backward(
    const Tensor& dz_given,             // (2, ..., H) or (..., 2, H)
    const Tensor& x,                    // (..., K)
    const Tensor& w_gate,               // (H or 2H, K)
    const std::optional<Tensor>& w_up,  // (H, K)
    bool need_dx, bool need_dw_gate, bool need_dw_up, bool dweight_fp32, bool allow_tf32) {
  const char* op = "gated_input_backward";
  const MlpShape shape = check_gated_input_backward(op, dz_given, x, w_gate, w_up);
  const LaunchScope scope(op, dz_given);
  const Tensor dw_gate =
      parameter_gradient(x, need_dw_gate, {w_gate.size(0), shape.k}, dweight_fp32);
  const Tensor dw_up =
      parameter_gradient(x, need_dw_up && w_up, {shape.hidden, shape.k}, dweight_fp32);
  const Tensor given = dense(dz_given);
  Tensor x_holder;
  const MatrixView rows = rows_view(x, x_holder);
  GemmCall call{.op = op, .a = {}, .b = {}, .dtype = shape.dtype, .allow_tf32 = allow_tf32};
  const auto readable = [&](const MatrixView& a, const Tensor& weight, bool need_dw,
                            Tensor& holder) {
    call.a = a;
    call.b = matrix_view(weight);
    return gradient_rows(call, need_dx, need_dw ? &rows : nullptr, dweight_fp32, holder, scope);
  };
  InputGradients dz;
  const MatrixView both{given.const_data_ptr(), shape.m, 2 * shape.hidden, 2 * shape.hidden, 1};
  const MatrixView first = w_up ? half_view(given, shape, false, 0) : both;
  dz.gate = readable(first, w_gate, need_dw_gate, dz.gate_holder);
  if (w_up) dz.up = readable(half_view(given, shape, false, 1), *w_up, need_dw_up, dz.up_holder);
  const Tensor dx =
      need_dx ? input_gradient(call, shape, dz, x, w_gate, w_up, scope) : new_dense(x, {0});

  // dw_gate = dgate.T @ x, dw_up = dup.T @ x
  if (need_dw_gate) run_wgrad(call, dz.gate, rows, dw_gate, scope);
  if (need_dw_up && w_up) run_wgrad(call, dz.up, rows, dw_up, scope);
  return {dx, dw_gate, dw_up};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("gated_linear", FUSEDOPS_BOX(&gated_linear));
  m.impl("gated_mlp_forward", FUSEDOPS_BOX(&gated_mlp_forward));
  m.impl("gated_mlp_backward", FUSEDOPS_BOX(&gated_mlp_backward));
  m.impl("gated_mlp_backward_", FUSEDOPS_BOX(&gated_mlp_backward_));
  m.impl("gated_input_backward", FUSEDOPS_BOX(&gated_input_backward));
}

}  // namespace fusedops
