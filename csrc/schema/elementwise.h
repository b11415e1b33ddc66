// Schemas: elementwise fusions. An `_out` op writes out, which may be an input (in place).
#pragma once

namespace fusedops {

inline constexpr const char* kElementwiseSchemas[] = {
    // Shapes broadcast.
    "add(Tensor x, Tensor y) -> Tensor",
    "add_out(Tensor x, Tensor y, Tensor(a!) out) -> ()",

    // a * x + b with one rounding; shapes broadcast.
    "fma(Tensor a, Tensor x, Tensor b) -> Tensor",
    "fma_out(Tensor a, Tensor x, Tensor b, Tensor(a!) out) -> ()",

    "square(Tensor x) -> Tensor",
    "square_out(Tensor x, Tensor(a!) out) -> ()",
    "square_backward(Tensor dy, Tensor x) -> Tensor",

    "relu(Tensor x) -> Tensor",
    "relu_out(Tensor x, Tensor(a!) out) -> ()",

    // act(x * scale + bias); x (..., N), scale and bias (N,).
    "scale_bias_act(Tensor x, Tensor? scale, Tensor? bias, int activation) -> Tensor",
    "scale_bias_act_out(Tensor x, Tensor? scale, Tensor? bias, int activation, Tensor(a!) out) "
    "-> ()",

    // (dx, dscale, dbias); what is not needed comes back with shape (0,).
    "scale_bias_act_backward(Tensor dy, Tensor x, Tensor? scale, Tensor? bias, int activation, "
    "bool need_dx, bool need_dscale, bool need_dbias) -> (Tensor, Tensor, Tensor)",

    // dropout(x + bias) + residual; x, residual (..., N), bias (N,), seed (1,) int64 where p > 0.
    "bias_dropout_residual(Tensor x, Tensor? bias, Tensor? residual, Tensor? seed, float p) "
    "-> Tensor",
    "bias_dropout_residual_out(Tensor x, Tensor? bias, Tensor? residual, Tensor? seed, float p, "
    "Tensor(a!) out) -> ()",

    // (dx, dbias); what is not needed comes back with shape (0,).
    "bias_dropout_residual_backward(Tensor dy, Tensor? seed, float p, bool need_dx, "
    "bool need_dbias) -> (Tensor, Tensor)",
};

}  // namespace fusedops
