// gated_mlp on CUDA: y = (act(gate) * up) @ w_down.T + b_down + residual. Gate and up lie in one
// tensor: (2, ..., H) from two weights, (..., 2, H) from one packed weight and one product.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <tuple>
#include <vector>

#include "common/mlp_check.h"
#include "cutlass/mlp_parts.h"

namespace fusedops {
namespace {

using torch::stable::new_empty;
using torch::stable::select;

// An empty (2, ..., hidden), or (..., 2, hidden) where packed, with the leading dimensions of x.
Tensor empty_stacked(const Tensor& x, int64_t hidden, bool packed) {
  const auto sizes = x.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = hidden;
  shape.insert(packed ? shape.end() - 1 : shape.begin(), 2);
  return new_empty(x, shape);
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

// x @ w.T + b for both weights: two products, or one of the packed weight.
Tensor run_gated_linear(const char* op, const Tensor& x, const Tensor& w_gate,
                        const std::optional<Tensor>& w_up, const std::optional<Tensor>& b_gate,
                        const std::optional<Tensor>& b_up, const MlpShape& shape, bool allow_tf32,
                        const LaunchScope& scope) {
  const Tensor both = empty_stacked(x, shape.hidden, !w_up);
  Tensor holder;
  GemmCall call{.op = op,
                .a = rows_view(x, holder),
                .b = matrix_view(w_gate).transposed(),
                .dtype = shape.dtype,
                .allow_tf32 = allow_tf32};
  run_linear(call, b_gate, w_up ? select(both, 0, 0) : both, nullptr, scope);
  if (w_up) {
    call.b = matrix_view(*w_up).transposed();
    run_linear(call, b_up, select(both, 0, 1), nullptr, scope);
  }
  return both;
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
  return run_gated_linear(op, x, w_gate, w_up, b_gate, b_up, shape, allow_tf32, scope);
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

  // gate and up
  const Tensor saved =
      run_gated_linear("gated_mlp", x, w_gate, w_up, b_gate, b_up, shape, allow_tf32, scope);

  // h = act(gate) * up
  const Tensor h = empty_like_rows(x, shape.hidden);
  const MatrixView up = half_view(saved, shape, packed, 1);
  run_gated_act("gated_mlp", shape, half_view(saved, shape, packed, 0), &up, h, scope);

  // y = h @ w_down.T + b_down + residual
  const GemmCall call{
      .op = "gated_mlp", .a = {}, .b = {}, .dtype = shape.dtype, .allow_tf32 = allow_tf32};
  const Tensor y = run_down(call, h, w_down, b_down, residual, empty_like_rows(x, shape.n), scope);
  return {y, save ? saved : new_empty(x, {0})};
}

// dz holds dh in its first half and ends as the gradients of gate and up; dbias (null: not wanted).
void run_gated_act_backward(const char* op, const MlpShape& shape, const MatrixView& gate,
                            const MatrixView& up, const Tensor& dz, const Tensor* dbias,
                            const LaunchScope& scope) {
  if (dbias && shape.m == 0) torch::stable::zero_(const_cast<Tensor&>(*dbias));
  if (shape.m == 0 || shape.hidden == 0) return;
  GatedActBackward p{.dtype = shape.dtype,
                     .activation = shape.activation,
                     .rows = shape.m,
                     .cols = shape.hidden,
                     .dh = dz.const_data_ptr(),
                     .gate = gate.data,
                     .gate_stride = gate.row_stride,
                     .up = up.data,
                     .up_stride = up.row_stride,
                     .dgate = dz.mutable_data_ptr(),
                     .dup = const_cast<void*>(half_view(dz, shape, false, 1).data)};
  Tensor partial;
  if (dbias) {
    p.dbias = dbias->mutable_data_ptr();
    p.dbias_fp32 = dbias->scalar_type() == ScalarType::Float;
    partial = new_empty(dz, {gated_act_workspace(p, scope.facts().sm_count)}, ScalarType::Byte);
    p.partial = partial.mutable_data_ptr();
  }
  const char* failure = gated_act_backward(p, scope.context());
  FUSEDOPS_CHECK(failure == nullptr, op, ": the launch failed: ", failure);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> gated_mlp_backward(
    const Tensor& dy,      // (..., N)
    const Tensor& saved,   // (2, ..., H) or (..., 2, H)
    const Tensor& w_down,  // (N, H)
    int64_t activation, bool packed, bool need_dz, bool need_dbias, bool need_dw_down,
    bool need_db_down, bool parameters_fp32, bool allow_tf32) {
  const char* op = "gated_mlp_backward";
  const MlpShape shape = check_gated_mlp_backward(op, dy, saved, w_down, activation, packed);
  const LaunchScope scope(op, dy);
  const ScalarType parameter = parameters_fp32 ? ScalarType::Float : dy.scalar_type();
  const auto parameter_or_empty = [&](bool needed, std::initializer_list<int64_t> sizes) {
    return needed ? new_empty(dy, sizes, parameter) : new_empty(dy, {0}, parameter);
  };
  const Tensor dbias = parameter_or_empty(need_dbias, {2, shape.hidden});
  const Tensor dw_down = parameter_or_empty(need_dw_down, {shape.n, shape.hidden});
  const Tensor db_down = parameter_or_empty(need_db_down, {shape.n});
  const bool any_dz = need_dz || need_dbias;
  const Tensor dz =
      any_dz || need_dw_down ? empty_stacked(dy, shape.hidden, false) : new_empty(dy, {0});
  const Tensor kept = torch::stable::contiguous(saved);
  const MatrixView gate = half_view(kept, shape, packed, 0), up = half_view(kept, shape, packed, 1);
  Tensor dy_holder, holder;
  const MatrixView dy_view = dense_rows(dy, dy_holder);
  const GemmCall call{.op = op,
                      .a = dy_view,
                      .b = matrix_view(w_down),
                      .dtype = shape.dtype,
                      .allow_tf32 = allow_tf32};

  // dw_down = dy.T @ h; h lies in the second half of dz until dup overwrites it
  if (need_dw_down) {
    const Tensor h = select(dz, 0, 1);
    run_gated_act(op, shape, gate, &up, h, scope);
    run_wgrad(call, dy_view, rows_view(h, holder), dw_down, scope);
  }

  // db_down = sum of dy
  if (need_db_down) {
    run_act_backward(op, dy_view, std::nullopt, shape.second(), nullptr, &db_down, scope);
  }

  // dgate, dup, dbias. The pair: dh = dy @ w_down into the first half of dz, then act' in place.
  if (any_dz) {
    run_gemm(call, select(dz, 0, 0), nullptr, scope);
    run_gated_act_backward(op, shape, gate, up, dz, need_dbias ? &dbias : nullptr, scope);
  }
  return {need_dz ? dz : new_empty(dy, {0}), dbias, dw_down, db_down};
}

std::tuple<Tensor, Tensor, Tensor> gated_input_backward(
    const Tensor& dz,                   // (2, ..., H)
    const Tensor& x,                    // (..., K)
    const Tensor& w_gate,               // (H or 2H, K)
    const std::optional<Tensor>& w_up,  // (H, K)
    bool need_dx, bool need_dw_gate, bool need_dw_up, bool dweight_fp32, bool allow_tf32) {
  const char* op = "gated_input_backward";
  const MlpShape shape = check_gated_input_backward(op, dz, x, w_gate, w_up);
  const LaunchScope scope(op, dz);
  const ScalarType weight_type = dweight_fp32 ? ScalarType::Float : x.scalar_type();
  const bool packed = !w_up;
  const auto dweight_or_empty = [&](bool needed, int64_t rows) {
    return needed ? new_empty(x, {rows, shape.k}, weight_type) : new_empty(x, {0}, weight_type);
  };
  const Tensor dw_gate = dweight_or_empty(need_dw_gate, packed ? 2 * shape.hidden : shape.hidden);
  const Tensor dw_up = dweight_or_empty(need_dw_up && !packed, shape.hidden);
  const Tensor both = torch::stable::contiguous(dz);
  const MatrixView dgate = half_view(both, shape, false, 0), dup = half_view(both, shape, false, 1);
  const MatrixView gate_rows = matrix_view(w_gate);
  GemmCall call{
      .op = op, .a = dgate, .b = gate_rows, .dtype = shape.dtype, .allow_tf32 = allow_tf32};

  // dx = dgate @ w_gate + dup @ w_up
  Tensor dx = new_empty(x, {0});
  if (need_dx) {
    const auto product = [&](const MatrixView& a, const MatrixView& b) {
      const Tensor out = empty_like_rows(x, shape.k);
      call.a = a;
      call.b = b;
      run_gemm(call, out, nullptr, scope);
      return out;
    };
    // The pair: two products, then their sum.
    dx = product(dgate, rows_of(gate_rows, 0, shape.hidden, shape.dtype));
    dx = sum(dx, product(dup, packed ? rows_of(gate_rows, shape.hidden, shape.hidden, shape.dtype)
                                     : matrix_view(*w_up)));
  }

  // dw_gate = dgate.T @ x, dw_up = dup.T @ x
  Tensor x_holder;
  const MatrixView x_rows = rows_view(x, x_holder);
  const auto part = [&](int64_t first) {
    return torch::stable::narrow(const_cast<Tensor&>(dw_gate), 0, first, shape.hidden);
  };
  if (need_dw_gate) run_wgrad(call, dgate, x_rows, packed ? part(0) : dw_gate, scope);
  if (packed ? need_dw_gate : need_dw_up) {
    run_wgrad(call, dup, x_rows, packed ? part(shape.hidden) : dw_up, scope);
  }
  return {dx, dw_gate, dw_up};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("gated_linear", TORCH_BOX(&gated_linear));
  m.impl("gated_mlp_forward", TORCH_BOX(&gated_mlp_forward));
  m.impl("gated_mlp_backward", TORCH_BOX(&gated_mlp_backward));
  m.impl("gated_input_backward", TORCH_BOX(&gated_input_backward));
}

}  // namespace fusedops
