// Schemas: softmax, cross entropy, norms, rotary embeddings and the gradient of an embedding.
#pragma once

namespace fusedops {

inline constexpr const char* kRowSchemas[] = {
    // softmax or log_softmax over one dim; y like x, in float32 where fp32_out.
    "softmax(Tensor x, int dim, bool log, bool fp32_out) -> Tensor",
    // dx_dtype: 0 that of y, 1 float16, 2 bfloat16.
    "softmax_backward(Tensor dy, Tensor y, int dim, bool log, int dx_dtype) -> Tensor",

    // (loss, lse, scale): logits (M, V), target (M,) int64; reduction 0 none, 1 mean, 2 sum; loss
    // (M,) or (), lse (M,) in the compute dtype, scale (1,) = 1 / rows that count, (0,) if not
    // mean.
    "cross_entropy(Tensor logits, Tensor target, int ignore_index, float label_smoothing, "
    "int reduction, bool fp32_out) -> (Tensor, Tensor, Tensor)",
    "cross_entropy_backward(Tensor dloss, Tensor logits, Tensor target, Tensor lse, Tensor scale, "
    "int ignore_index, float label_smoothing, int reduction) -> Tensor",

    // (loss, scale, dx, dweight, dbias) of x @ weight.T + bias; x (M, K), weight (V, K), bias (V,),
    // target and reduction as above; softcap 0 for none. The gradients are those of the loss, or of
    // its product with dloss, (M,) or (); they are still to be multiplied by scale (1,), which is 1
    // but for the mean of float16 without dloss. chunk_size: rows whose logits are in memory
    // together, 0 for our choice. What is not needed has shape (0,).
    "linear_cross_entropy(Tensor x, Tensor weight, Tensor? bias, Tensor target, Tensor? dloss, "
    "int ignore_index, float label_smoothing, float softcap, float z_loss, int reduction, "
    "bool fp32_out, int chunk_size, bool need_dx, bool need_dweight, bool need_dbias, "
    "bool dweight_fp32, bool allow_tf32) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    // What a shard of the classes knows of each row, (M, 4) in the compute dtype: the largest
    // logit,
    // the sum of exponentials relative to it, the sum of logits where smooth (else 0), the target's
    // logit: 0 where another shard has it, NaN where none does. logits (M, pitch), of which `width`
    // columns are those of the classes from `first` on, of `classes` in all; target (M,) int64.
    "loss_shard_parts(Tensor logits, Tensor target, int first, int width, int classes, "
    "int ignore_index, float softcap, bool smooth) -> Tensor",
    // The gradient in the place of the logits, 0 behind `width`: lse (M,), factor (M,) or (1,) in
    // the compute dtype are the log-sum-exp of all classes and what a row's gradient is multiplied
    // by.
    "loss_shard_gradient_(Tensor(a!) logits, Tensor target, Tensor lse, Tensor factor, int first, "
    "int width, int classes, int ignore_index, float label_smoothing, float softcap, "
    "float z_loss) -> ()",
    // gradient *= dloss () * scale (1,), which are on the device; untouched where that is 1.
    "scale_gradient_(Tensor(a!) gradient, Tensor dloss, Tensor scale) -> ()",

    // (y, sum, mean, rstd): the last norm_dims dims of sum = x + residual normalised; sum is (0,)
    // without a residual; mean, rstd (rows,) in the compute dtype, (0,) where not needed.
    "layer_norm(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, int norm_dims, "
    "float eps, bool fp32_out, bool need_statistics) -> (Tensor, Tensor, Tensor, Tensor)",
    // (dx, dweight, dbias); dresidual is added to dx; what is not needed has shape (0,).
    "layer_norm_backward(Tensor dy, Tensor? dresidual, Tensor x, Tensor? weight, Tensor mean, "
    "Tensor rstd, int norm_dims, bool need_dx, bool need_dweight, bool need_dbias) "
    "-> (Tensor, Tensor, Tensor)",

    // (y, sum, rstd) and (dx, dweight), the same without mean and bias.
    "rms_norm(Tensor x, Tensor? residual, Tensor? weight, int norm_dims, float eps, bool fp32_out, "
    "bool need_statistics) -> (Tensor, Tensor, Tensor)",
    "rms_norm_backward(Tensor dy, Tensor? dresidual, Tensor x, Tensor? weight, Tensor rstd, "
    "int norm_dims, bool need_dx, bool need_dweight) -> (Tensor, Tensor)",

    // (q, k) rotated: q (B, H, T, D) for heads_dim 1, (B, T, H, D) for 2, k with heads of its own;
    // cos, sin (T, W) or (B or 1, T, W), W = rotary_dim, a column for each element, or half of it.
    // inverse: transposed, which is the gradient. A result is dense, its heads before or behind T
    // in memory as in its input; k is (0,) without one.
    "rope(Tensor q, Tensor? k, Tensor cos, Tensor sin, int heads_dim, int rotary_dim, "
    "bool interleaved, bool inverse) -> (Tensor, Tensor)",

    // (num_rows, D): row v is the sum of grad (..., D) over the places where indices (...), int32
    // or
    // int64, are v, zeros for none and in row padding_idx (-1: no such row).
    "embedding_backward(Tensor grad, Tensor indices, int num_rows, int padding_idx) -> Tensor",
};

}  // namespace fusedops
