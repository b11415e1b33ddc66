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
    // their running sums, the rows (E, 4), idx with -1 for what does not count, and the rows'
    // operands (planes, E, 8), of offsets and up to 10 features, in like's dtype. Without the sums
    // a group's rows begin at K times its number, and `ends` says where they end.
    "edge_counts(Tensor idx, int n) -> Tensor",
    "edge_list(Tensor idx, Tensor? ends, int n, Tensor? points, Tensor? centers, "
    "Tensor? features, Tensor like) -> "
    "(Tensor list, Tensor merged, Tensor own_ends, Tensor operands)",

    // Weights and norms of up to four layers of padded widths c1 to c4: the first one's columns for
    // the operands (planes, c1, 8), W_2 and on in one piece, (scale, shift) of every channel.
    "edge_parameters(Tensor? offset_weight, Tensor? feature_weight, Tensor? w2, Tensor? w3, "
    "Tensor? w4, Tensor? gamma1, Tensor? gamma2, Tensor? gamma3, Tensor? gamma4, Tensor? beta1, "
    "Tensor? beta2, Tensor? beta3, Tensor? beta4, Tensor? bias1, Tensor? bias2, Tensor? bias3, "
    "Tensor? bias4, Tensor? mean1, Tensor? mean2, Tensor? mean3, Tensor? mean4, Tensor? var1, "
    "Tensor? var2, Tensor? var3, Tensor? var4, int c1, int c2, int c3, int c4, float eps1, "
    "float eps2, float eps3, float eps4, Tensor like) -> "
    "(Tensor first_weight, Tensor weights, Tensor affine)",

    // rows (B, N, c1) in fragment order, what edge_list and edge_parameters gave, `clouds` B.
    // infer: out, act(max) (B, M, channels), of a list without given ends. pool: best, which: the
    // maxima of sign(scale) y in fp32
    // and where they are, in int16. sums: affine (c, 2) and stats (4, c) of the last layer by its
    // batch statistics, its given affine being (gamma, beta).
    "edge_mlp_forward(Tensor? rows, Tensor? group_rows, Tensor? first_weight, Tensor? operands, "
    "Tensor list, Tensor ends, Tensor weights, Tensor affine, int clouds, int c1, int c2, "
    "int c3, int c4, float slope, int channels, bool infer, bool pool, bool sums, "
    "float eps) -> (Tensor out, Tensor best, Tensor which, Tensor affine, Tensor stats)",

    // Through layer l: rows of the gradient of layer l - 1 before its activation (E, c), those of
    // its scale and shift (c, 2), the dense part by its statistics (c, 2), dW. The rows are written
    // over those from above, where there are such.
    "edge_mlp_backward_(Tensor? rows, Tensor? group_rows, Tensor? first_weight, Tensor? operands, "
    "Tensor list, Tensor ends, Tensor weights, Tensor affine, int clouds, int c1, int c2, "
    "int c3, int c4, float slope, Tensor? winners, Tensor(a!)? above, Tensor? dense, "
    "Tensor? below_stats) -> (Tensor below, Tensor grads, Tensor below_dense, Tensor dw)",

    // act(scale y + shift) of pooled values, of the dtype of like; and backward: the gradient of
    // the maxima of y, of scale and shift, and the dense part of y's where there are statistics.
    "edge_pool_forward(Tensor best, Tensor which, Tensor affine, Tensor like, float slope) -> "
    "Tensor",
    "edge_pool_backward(Tensor dout, Tensor best, Tensor which, Tensor affine, Tensor? stats, "
    "float slope) -> (Tensor winners, Tensor grads, Tensor dense)",

    // The first layer's gradient needs (E, 4) weights and weighted offsets of the rows; (E, C) the
    // rows' winners; sums over the rows of a group (G, C); sums in closed form (R, C) and their
    // products with coordinates (C, 3).
    "edge_moments(Tensor list, Tensor ends, Tensor? points, Tensor? centers) -> Tensor",
    "edge_winners(Tensor winners, Tensor list, Tensor ends, Tensor like) -> Tensor",
    "edge_group_sums(Tensor rows, Tensor list, Tensor ends, bool gathers) -> Tensor",
    // (C + 32, 16): products of rows (E, C) with the operands, then those of weight * operand, and
    // the sum of weight * operand.
    "edge_products(Tensor rows, Tensor list, Tensor ends, Tensor operands) -> Tensor",
    // (C, 16) from them: the gradients of the offsets' weight (C, 3), then of the features'.
    "edge_first_grads(Tensor products, Tensor? affine, Tensor? dense, Tensor weight) -> Tensor",
    // The edges to every point: entries (E,) of idx (B, M, K) by the row of n that they name,
    // ascending, and where those of a row are, ranges (B * n, 2). Sums by them (B * n, C) in
    // float32 of rows (E / per_row, C), times an entry's weight.
    "edge_lists(Tensor idx, int n) -> (Tensor entries, Tensor ranges)",
    "edge_point_sums(Tensor rows, Tensor entries, Tensor ranges, Tensor? weights, int per_row) -> "
    "Tensor",
    // Sums (D, C) of rows (N, C) by lists of them, entries[ranges[d, 0] : ranges[d, 1]], in their
    // order. Entries must be numbers of rows, and ranges within entries (E,).
    "edge_message_sums(Tensor rows, Tensor entries, Tensor ranges) -> Tensor",

    // Sums by point (B * n, 4) of the weights and weighted offsets of edge_list's rows.
    "edge_point_moments(Tensor entries, Tensor ranges, Tensor list, Tensor ends, Tensor? points, "
    "Tensor? centers) -> Tensor",

    // One layer over the edges of points among themselves (edge_conv.cuh): products (B, N, 2 C) of
    // the features, u then v + u; idx (B, N, K); affine (width, 2). Results as of
    // edge_mlp_forward; with sums also totals, the sums of y by group, and products keep u and v.
    // Backward: from winners (edge_pool_backward) and the dense part of the gradient to that of the
    // products, in like's dtype, and which points are in an edge.
    "edge_conv_forward_(Tensor(a!) products, Tensor idx, Tensor affine, Tensor like, float slope, "
    "bool infer, bool sums, float eps) -> (Tensor out, Tensor best, Tensor which, Tensor totals, "
    "Tensor normed, Tensor stats)",
    "edge_conv_backward(Tensor products, Tensor idx, Tensor winners, Tensor? totals, "
    "Tensor? dense, Tensor entries, Tensor ranges, Tensor like) -> (Tensor out, Tensor used)",
    "edge_close(Tensor sums, Tensor? affine, Tensor? dense, Tensor? moments, Tensor? own, "
    "Tensor? others, Tensor? first_weight, Tensor? coordinates, Tensor like) -> "
    "(Tensor out, Tensor products)",
    // The gradient of features (R, F) that are a part of the operands, from the sums by point.
    "edge_feature_grads(Tensor sums, Tensor? affine, Tensor? dense, Tensor? moments, "
    "Tensor first_weight, Tensor features) -> Tensor",
};

}  // namespace fusedops
