// Schemas: FP8, e4m3 and e5m2.
#pragma once

namespace fusedops {

inline constexpr const char* kFp8Schemas[] = {
    // v = act(x), or x * act'(saved) where `gradient`, times factor where there is one; all (M, K).
    // (q, scale, q_t, scale_t, sums): v = q * scale by rows, v.T = q_t * scale_t by columns, and
    // the sums of v's columns (K,). What is not wanted comes back with shape (0,) or (0, 0).
    // format: 0 e4m3, 1 e5m2. rows, columns: 0 not wanted, 1 one scale, 2 a scale for each row of
    // q (of q_t), 3 for 1x128, 4 for 128x128; csrc/common/fp8.h says how scales lie.
    "fp8_quantize(Tensor x, Tensor? saved, Tensor? factor, int activation, bool gradient, "
    "int format, int rows, int columns, bool power_of_two, bool need_sums, bool sums_fp32) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",

    // (q, scale, q_t, scale_t) of a above b, both (N, K) with N a multiple of 128, scaled by
    // 128x128, as fp8_quantize gives them; the transpose only where `columns`.
    "_fp8_quantize_pair(Tensor a, Tensor b, int format, bool columns, bool power_of_two) "
    "-> (Tensor, Tensor, Tensor, Tensor)",

    // Backward at the hidden layer of an MLP, all of 1x128 blocks; dh, saved, factor (M, K).
    // Without a
    // factor dz = dh * act'(saved), what forward saved, and h = act(z), which is saved where act
    // keeps its output. With one, of a gated MLP up, saved is gate, and dz has two parts, dh *
    // factor *
    // act'(saved) and dh * act(saved); h = act(saved) * factor. (q, scale, q_t, scale_t, h_t,
    // h_scale_t, sums): dz as fp8_quantize gives it, the parts beside each other, in q each padded
    // to
    // a multiple of 16 columns; h.T in e4m3, scaled as hidden says: 0 not wanted, 3 for 1x128, 4
    // for
    // 128x128; the sums of dz's columns.
    "_fp8_hidden_grads(Tensor dh, Tensor saved, Tensor? factor, int activation, int format, "
    "bool rows, bool columns, int hidden, bool power_of_two, bool need_sums, bool sums_fp32) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",

    // layer_norm, or rms_norm where `rms`, of the rows of x (M, K), or of sum = x + residual, and
    // fp8_quantize of what it gives in x's dtype: (q, scale, q_t, scale_t, sum, mean, rstd); weight
    // and bias (K,) as the norm's, sum (0,) without a residual, mean (0,) of an RMS norm.
    "_fp8_norm(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, bool rms, float eps, "
    "int format, int rows, int columns, bool power_of_two) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",

    // out (M, N) = act((a * scale_a) @ (b * scale_b).T + bias); a (M, K), b (N, K), e4m3 or e5m2;
    // bias (N,) in out's dtype; out_dtype: 0 float16, 1 bfloat16, 2 float32. Scales, fp32, by their
    // shape: (1, 1), (rows, 1), (rows, ceil(K / 128)) or (ceil(rows / 128), ceil(K / 128)).
    "_fp8_matmul(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, "
    "int activation, int out_dtype) -> Tensor",

    // main_grad (M, N), fp32: (a * scale_a) @ (b * scale_b).T, added to what it holds where
    // `accumulate`.
    "_fp8_wgrad_(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor(a!) main_grad, "
    "bool accumulate) -> ()",
};

}  // namespace fusedops
