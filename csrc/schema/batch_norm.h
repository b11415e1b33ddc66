// Schemas: batch norm over the rows of (..., C), with residual and activation.
#pragma once

namespace fusedops {

// x, residual, dy (..., C); mean, var, weight, bias, shift and the running statistics (C,), of x's
// dtype or float32. z = (x - mean) / sqrt(var + eps) * weight + bias + residual, where what is None
// is left out.
inline constexpr const char* kBatchNormSchemas[] = {
    // (mean, var) of the rows, biased, (C,) in float32 (float64). Mixes mean + shift and the
    // unbiased var into the running statistics, which may be None; not where there are no rows.
    // moments: those of x that linear_moments gives; None: x is read for them.
    "batch_norm_statistics_(Tensor x, Tensor? moments, Tensor? shift, Tensor(a!)? running_mean, "
    "Tensor(b!)? running_var, float momentum) -> (Tensor, Tensor)",

    // y = act(z)
    "batch_norm_apply(Tensor x, Tensor? mean, Tensor? var, Tensor? weight, Tensor? bias, "
    "Tensor? residual, float eps, int activation) -> Tensor",

    // (sums, dz) with dz = dy act'(z): sums (2, C), in float32 (float64), those of dz and of
    // dz (x - mean) / sqrt(var + eps) over the rows; dz with shape (0,) where it is not needed.
    // saved: y where the activation's derivative reads it, else the residual; None: no residual.
    "batch_norm_sums(Tensor dy, Tensor x, Tensor? mean, Tensor? var, Tensor? weight, Tensor? bias, "
    "Tensor? saved, float eps, int activation, bool need_dz) -> (Tensor, Tensor)",

    // (dx, dz). sums: those of all rows that the statistics are of, count () of them, None: x's;
    // None: the statistics are constants.
    "batch_norm_backward(Tensor dy, Tensor x, Tensor? mean, Tensor? var, Tensor? weight, "
    "Tensor? bias, Tensor? saved, Tensor? sums, Tensor? count, float eps, int activation, "
    "bool need_dz) -> (Tensor, Tensor)",

    // (y, mean, var): batch_norm_statistics_ and batch_norm_apply as one call.
    "batch_norm_train_(Tensor x, Tensor? moments, Tensor? weight, Tensor? bias, Tensor? residual, "
    "Tensor? shift, Tensor(a!)? running_mean, Tensor(b!)? running_var, float momentum, float eps, "
    "int activation) -> (Tensor, Tensor, Tensor)",

    // (dx, dz, sums): batch_norm_sums and batch_norm_backward by these sums as one call.
    "batch_norm_train_backward(Tensor dy, Tensor x, Tensor mean, Tensor var, Tensor? weight, "
    "Tensor? bias, Tensor? saved, float eps, int activation, bool need_dz) "
    "-> (Tensor, Tensor, Tensor)",

    // (weight scale, shift) in weight's dtype: what convolves to (conv(x) + conv_bias - mean) scale
    // + bias, where scale = bn_weight / sqrt(var + eps). weight (O, K), the vectors (O,).
    "batch_norm_fold(Tensor weight, Tensor? conv_bias, Tensor? mean, Tensor? var, "
    "Tensor? bn_weight, Tensor? bias, float eps) -> (Tensor, Tensor)",
};

}  // namespace fusedops
