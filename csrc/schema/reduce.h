// Schemas: Reductions. `reduction` is a code of common/reduction.h; bit i of `dims` asks for
// dimension i; `wide` asks for a result in the compute type (fp32, fp64 for fp64).
#pragma once

namespace fusedops {

inline constexpr const char* kReduceSchemas[] = {
    "reduce(Tensor x, int reduction, int dims, bool keepdim, bool wide) -> Tensor",

    // (variance or standard deviation, mean); the divisor is max(0, count - correction).
    "var_mean(Tensor x, int dims, float correction, bool root, bool keepdim, bool wide) "
    "-> (Tensor, Tensor)",

    // (amax, amin or infinity norm; how many elements equal it, in the compute type).
    "extremum_count(Tensor x, int reduction, int dims, bool keepdim) -> (Tensor, Tensor)",

    // dx from x and per-result coefficients; gradient is a code of reduce_check.h.
    "reduce_backward(Tensor x, Tensor scale, Tensor? shift, int gradient) -> Tensor",

    // dy (..., N) -> (N,)
    "bias_grad(Tensor dy, bool wide) -> Tensor",
};

}  // namespace fusedops
