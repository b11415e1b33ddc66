// Schemas: mlp, gated_mlp and their backward.
#pragma once

namespace fusedops {

inline constexpr const char* kMlpSchemas[] = {
    // y = act(x @ w1.T + b1) @ w2.T + b2 + residual; x (..., K), w1 (H, K), w2 (N, H), residual and
    // y (..., N). saved (..., H) is what mlp_backward reads: the pre-activation, or act of it where
    // that is enough; shape (0,) without `save`.
    "mlp_forward(Tensor x, Tensor w1, Tensor? b1, Tensor w2, Tensor? b2, Tensor? residual, "
    "int activation, bool save, bool allow_tf32) -> (Tensor y, Tensor saved)",

    // (dz, db1, dw2, db2) with dz (..., H) the gradient of the pre-activation: what is left is
    // linear_backward of the first product, which runs when `saved` is freed. What is not needed
    // comes back with shape (0,).
    "mlp_backward(Tensor dy, Tensor saved, Tensor w2, int activation, bool need_dz, bool need_db1, "
    "bool need_dw2, bool need_db2, bool parameters_fp32, bool allow_tf32) "
    "-> (Tensor, Tensor, Tensor, Tensor)",

    // The same, free to write act(saved) over `saved`: for a graph that nobody runs backward again.
    // With main_grad dw2 goes there, as in linear_wgrad_, and comes back with shape (0,).
    "mlp_backward_(Tensor dy, Tensor(a!) saved, Tensor w2, Tensor(b!)? main_grad, bool accumulate, "
    "int activation, bool need_dz, bool need_db1, bool need_dw2, bool need_db2, "
    "bool parameters_fp32, bool allow_tf32) -> (Tensor, Tensor, Tensor, Tensor)",

    // y = (act(gate) * up) @ w_down.T + b_down + residual with gate = x @ w_gate.T + b_gate and up
    // alike. Without w_up, w_gate (2H, K) and b_gate (2H,) hold both, gate first. saved holds gate
    // and up: (2, ..., H), or (..., 2, H) without w_up; shape (0,) without `save`.
    "gated_mlp_forward(Tensor x, Tensor w_gate, Tensor? w_up, Tensor? b_gate, Tensor? b_up, "
    "Tensor w_down, Tensor? b_down, Tensor? residual, int activation, bool save, bool allow_tf32) "
    "-> (Tensor y, Tensor saved)",

    // gate and up alone, as gated_mlp_forward saves them: for a backward that recomputes them.
    "gated_linear(Tensor x, Tensor w_gate, Tensor? w_up, Tensor? b_gate, Tensor? b_up, "
    "bool allow_tf32) -> Tensor",

    // (dz, dbias, dw_down, db_down): dz holds the gradients of gate and up as saved holds them,
    // dbias (2, H) their sums.
    "gated_mlp_backward(Tensor dy, Tensor saved, Tensor w_down, int activation, bool packed, "
    "bool need_dz, bool need_dbias, bool need_dw_down, bool need_db_down, bool parameters_fp32, "
    "bool allow_tf32) -> (Tensor, Tensor, Tensor, Tensor)",

    // The same, with dz written over `saved`: for a graph that nobody runs backward again.
    // (dbias, dw_down, db_down), dw_down into main_grad as above.
    "gated_mlp_backward_(Tensor dy, Tensor(a!) saved, Tensor w_down, Tensor(b!)? main_grad, "
    "bool accumulate, int activation, bool packed, bool need_dbias, bool need_dw_down, "
    "bool need_db_down, bool parameters_fp32, bool allow_tf32) -> (Tensor, Tensor, Tensor)",

    // (dx, dw_gate, dw_up) from dz (2, ..., H); without w_up from dz (..., 2, H), dw_gate is
    // (2H, K) and dw_up (0,).
    "gated_input_backward(Tensor dz, Tensor x, Tensor w_gate, Tensor? w_up, bool need_dx, "
    "bool need_dw_gate, bool need_dw_up, bool dweight_fp32, bool allow_tf32) "
    "-> (Tensor, Tensor, Tensor)",
};

}  // namespace fusedops
