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

    // The passes of an MLP over edges (csrc/cuda/points/edges/edge_problem.h), CUDA only.
    // How many entries of idx (B, M, K) every group has that are rows of n and no repeats; from
    // their running sums, the rows (E, 4) and their points (E), -1 behind the last.
    "edge_counts(Tensor idx, int n) -> Tensor",
    "edge_list(Tensor idx, Tensor ends, int n) -> (Tensor list, Tensor points)",

    // rows (B, N, c1) in fragment order, points (B, N, 3), weights flat, affine (C, 2).
    // infer: out, act(max) (B, M, channels). pool: best, which: the maxima of sign(scale) y in fp32
    // and where they are, in int16. sums: affine (c, 2) and stats (4, c) of the last layer by its
    // batch statistics, its given affine being (gamma, beta).
    "edge_mlp_forward(Tensor? rows, Tensor? group_rows, Tensor? offset_weight, Tensor? points, "
    "Tensor? centers, Tensor list, Tensor ends, Tensor weights, Tensor affine, int c1, int c2, "
    "int c3, int c4, float slope, int channels, bool infer, bool pool, bool sums, "
    "float eps) -> (Tensor out, Tensor best, Tensor which, Tensor affine, Tensor stats)",

    // Through layer l: rows of the gradient of layer l - 1 before its activation (E, c), those of
    // its scale and shift (c, 2), the dense part by its statistics (c, 2), dW.
    "edge_mlp_backward(Tensor? rows, Tensor? group_rows, Tensor? offset_weight, Tensor? points, "
    "Tensor? centers, Tensor list, Tensor ends, Tensor weights, Tensor affine, int c1, int c2, "
    "int c3, int c4, float slope, Tensor? winners, Tensor? above, Tensor? dense, "
    "Tensor? below_stats) -> (Tensor below, Tensor grads, Tensor below_dense, Tensor dw)",

    // (C, 2), scale and shift, of (6, C): gamma, beta, bias, mean, variance, eps.
    "edge_affine(Tensor values) -> Tensor",

    // act(scale y + shift) of pooled values, of the dtype of like; and backward: the gradient of
    // the maxima of y, of scale and shift, and the dense part of y's where there are statistics.
    "edge_pool_forward(Tensor best, Tensor which, Tensor affine, Tensor like, float slope) -> "
    "Tensor",
    "edge_pool_backward(Tensor dout, Tensor best, Tensor which, Tensor affine, Tensor? stats, "
    "float slope) -> (Tensor winners, Tensor grads, Tensor dense)",

    // Of the first layer's gradient: (E, 4) weights and weighted offsets of the rows; (E, C) the
    // rows' winners; sums over the rows of a group (G, C); sums in closed form (R, C) and their
    // products with coordinates (C, 3).
    "edge_moments(Tensor list, Tensor ends, Tensor? points, Tensor? centers) -> Tensor",
    "edge_winners(Tensor winners, Tensor list, Tensor ends, Tensor like) -> Tensor",
    "edge_group_sums(Tensor rows, Tensor list, Tensor ends, bool gathers) -> Tensor",
    // (C + 32, 3): products of rows (E, C) with the offsets, then those of weight * offset and
    // weight.
    "edge_offset_products(Tensor rows, Tensor list, Tensor ends, Tensor points, Tensor? centers) "
    "-> Tensor",
    "edge_close(Tensor sums, Tensor? affine, Tensor? dense, Tensor? moments, Tensor? own, "
    "Tensor? others, Tensor? offset_weight, Tensor? coordinates, Tensor like) "
    "-> (Tensor out, Tensor products)",
};

}  // namespace fusedops
