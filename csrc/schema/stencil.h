// Schemas: stencils.
#pragma once

namespace fusedops {

inline constexpr const char* kStencilSchemas[] = {
    // y[p] = scale * sum over taps k of weight[k] x[p + k - taps / 2], in each of the leading
    // planes; x (..., [D,] [H,] W), weight ([C,] [kd,] [kh,] kw), padding a code of Padding.
    "stencil(Tensor x, Tensor weight, float scale, int dims, int padding) -> Tensor",

    // (dx, dweight); what is not needed comes back with shape (0,).
    "stencil_backward(Tensor dy, Tensor x, Tensor weight, float scale, int dims, int padding, "
    "bool need_dx, bool need_dweight) -> (Tensor, Tensor)",
};

}  // namespace fusedops
