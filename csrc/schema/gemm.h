// Schemas: Linear, matmul and their backward.
#pragma once

namespace fusedops {

inline constexpr const char* kGemmSchemas[] = {
    // y = act(x @ weight.T + bias); x (..., K), weight (N, K), bias (N,), y (..., N).
    "linear(Tensor x, Tensor weight, Tensor? bias, int activation, bool allow_tf32) -> Tensor",

    // (y, z) with z = x @ weight.T + bias.
    "linear_preact(Tensor x, Tensor weight, Tensor? bias, int activation, bool allow_tf32) "
    "-> (Tensor, Tensor)",

    // (y, moments) with y = x @ weight.T, and the moments of its columns as batch_norm_check.h has
    // them.
    "linear_moments(Tensor x, Tensor weight) -> (Tensor, Tensor)",

    // y = act(a @ b + bias); a (M, K), b (K, N), any strides.
    "matmul(Tensor a, Tensor b, Tensor? bias, int activation, bool allow_tf32) -> Tensor",
    "matmul_preact(Tensor a, Tensor b, Tensor? bias, int activation, bool allow_tf32) "
    "-> (Tensor, Tensor)",

    // (dx, dweight, dbias); what is not needed comes back with shape (0,).
    "linear_backward(Tensor dy, Tensor x, Tensor weight, Tensor? saved, int activation, "
    "bool need_dx, bool need_dweight, bool need_dbias, bool dweight_fp32, bool allow_tf32) "
    "-> (Tensor, Tensor, Tensor)",

    // dx = dz @ weight + added; added (..., K).
    "linear_input_backward(Tensor dz, Tensor weight, Tensor added, bool allow_tf32) -> Tensor",

    // main_grad (N, K), fp32: dz.T @ x, added to what it holds where `accumulate`.
    "linear_wgrad_(Tensor dz, Tensor x, Tensor(a!) main_grad, bool accumulate, bool allow_tf32) "
    "-> ()",

    // dz = dy * act'(.), dbias = dz summed over rows.
    "act_backward_bias_grad(Tensor dy, Tensor? saved, int activation, bool need_dbias, "
    "bool dbias_fp32) -> (Tensor, Tensor)",
};

}  // namespace fusedops
