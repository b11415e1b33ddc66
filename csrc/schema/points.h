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
};

}  // namespace fusedops
