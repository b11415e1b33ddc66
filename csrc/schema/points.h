// Schemas: Point clouds, sampling and grouping.
#pragma once

namespace fusedops {

inline constexpr const char* kPointsSchemas[] = {
    // (B, n) int64 indices, -1 beyond a cloud's length; points (B, N, D) with lengths (B,), or
    // (P, D) with offsets (B + 1,). With out_offsets (B + 1,) the result is (n,), cloud b's part
    // out_offsets[b] to out_offsets[b + 1]. No cloud is longer than max_length.
    "farthest_point_sample(Tensor points, Tensor? lengths, Tensor? offsets, Tensor? start, "
    "Tensor? out_offsets, int n, int max_length) -> Tensor",

    // (B, M, K, D + C): points[idx] - centers, then features[idx]; zeros where idx is no row.
    // features (B, N, C), idx (B, M, K), points (B, N, D), centers (B, M, D).
    "group(Tensor? features, Tensor idx, Tensor? points, Tensor? centers) -> Tensor",

    // (B, n, count): channels first .. first + count of dout (B, M, K, C), summed by idx (B, M, K).
    "group_backward(Tensor dout, Tensor idx, int n, int first, int count, bool fp32) -> Tensor",

    // (B, M, C): sum over k of weights (B, M, K) * features (B, N, C)[idx (B, M, K)].
    "interpolate(Tensor features, Tensor idx, Tensor weights) -> Tensor",

    // (dfeatures, dweights); what is not needed comes back with shape (0,).
    "interpolate_backward(Tensor dout, Tensor features, Tensor idx, Tensor weights, "
    "bool need_dfeatures, bool need_dweights) -> (Tensor, Tensor)",

    // The passes of an MLP over edges (csrc/cuda/points/edges/edge_problem.h), CUDA only. rows
    // (B, N, c1) in fragment order, points (B, N, 3), idx (B, M, K), weights flat, affine (C, 2).
    // infer: out, act(max) (B, M, channels). pool: best, which: the maxima of sign(scale) y in fp32
    // and where they are, in int16. sums: affine (c, 2) and stats (4, c) of the last layer by its
    // batch statistics, its given affine being (gamma, beta).
    "edge_mlp_forward(Tensor? rows, Tensor? group_rows, Tensor? offset_weight, Tensor? points, "
    "Tensor? centers, Tensor idx, Tensor weights, Tensor affine, int c1, int c2, int c3, int c4, "
    "float slope, int channels, bool infer, bool pool, bool sums, float eps) "
    "-> (Tensor out, Tensor best, Tensor which, Tensor affine, Tensor stats)",

    // Through layer l: rows of the gradient of layer l - 1 before its activation (B, M, K, c), those
    // of its scale and shift (c, 2), the dense part by its statistics (c, 2), the rows' sums by
    // group (B, M, c), dW. Rows of entries that are none or repeats stay unwritten.
    "edge_mlp_backward(Tensor? rows, Tensor? group_rows, Tensor? offset_weight, Tensor? points, "
    "Tensor? centers, Tensor idx, Tensor weights, Tensor affine, int c1, int c2, int c3, int c4, "
    "float slope, Tensor? best_grad, Tensor? which, Tensor? above, Tensor? dense, "
    "Tensor? below_stats, bool need_group_sums) "
    "-> (Tensor below, Tensor grads, Tensor below_dense, Tensor group_sums, Tensor dw)",

    // (C, 2), scale and shift, of (6, C): gamma, beta, bias, mean, variance, eps.
    "edge_affine(Tensor values) -> Tensor",

    // act(scale y + shift) of pooled values, of the dtype of like; and backward: the gradient of
    // the maxima of y, of scale and shift, and the dense part of y's where there are statistics.
    "edge_pool_forward(Tensor best, Tensor which, Tensor affine, Tensor like, float slope) -> Tensor",
    "edge_pool_backward(Tensor dout, Tensor best, Tensor which, Tensor affine, Tensor? stats, "
    "float slope) -> (Tensor best_grad, Tensor grads, Tensor dense)",

    // (B, M, k, width) of the dtype of like: best_grad (B, M, C) in the rows that `which` names.
    "edge_winners(Tensor best_grad, Tensor which, Tensor like, int k, int width) -> Tensor",
};

}  // namespace fusedops
