// Schemas: passes over the rows of wide layers over edges.
#pragma once

namespace fusedops {

// y, dy (R, C) in float16 or bfloat16, C a multiple of 8; row r is edge r % k of group r / k. valid
// (R,) bool says which rows count, None: all. stats (5, C) float32: mean, 1 / sigma, scale and
// shift of z = (y - mean) scale + shift, and how many rows count; slope: of the activation where z
// is negative.
inline constexpr const char* kEdgeRowsSchemas[] = {
    // (y, valid): rows[j] + group_rows[i] + offset_weight (points[j] - centers[i]), summed in
    // float32, in like's dtype. rows (B, N, C), group_rows (B, M, C), offset_weight (C, 3), points
    // (B, N, 3), centers (B, M, 3), all float32; idx (B, M, K). stats: act(z) instead, zeros
    // where nothing counts.
    "edge_rows_first(Tensor? rows, Tensor? group_rows, Tensor? offset_weight, Tensor? points, "
    "Tensor? centers, Tensor idx, Tensor like, Tensor? stats, float slope) "
    "-> (Tensor y, Tensor valid)",

    // (stats, best, which). batch: those of the rows that count, mixed into the running ones;
    // else those that are given, None: mean 0, variance 1. shift (C,) comes on top of y; vectors
    // are float32. k > 0: the groups' extrema (R / k, C) by the sign of weight, and where they are,
    // -1 in a group where nothing counts.
    "edge_rows_statistics_(Tensor y, Tensor? valid, Tensor? weight, Tensor? bias, Tensor? shift, "
    "Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor? share, float momentum, float eps, "
    "bool batch, int k) -> (Tensor stats, Tensor best, Tensor which)",

    // weight (O, K) and bias (O,), in weight's dtype, of (x weight^T + shift - mean) gamma / sigma
    // +
    // beta; the vectors (O,) are float32.
    "edge_rows_fold(Tensor weight, Tensor? gamma, Tensor? beta, Tensor? shift, Tensor? mean, "
    "Tensor? var, float eps) -> (Tensor, Tensor)",

    // act(z); zeros where which is negative or valid is false.
    "edge_rows_apply(Tensor y, Tensor stats, Tensor? which, Tensor? valid, float slope) -> Tensor",

    // (2, C) float32: sums of dz = da act'(z) and of dz (y - mean) / sigma over rows that count.
    "edge_rows_sums(Tensor da, Tensor y, Tensor stats, Tensor? which, Tensor? valid, "
    "float slope) -> Tensor",

    // dy from da, or with which (R / k, C) from the groups' da (R / k, C) at best (R / k, C); sums
    // where the statistics are the batch's.
    "edge_rows_backward(Tensor da, Tensor y, Tensor stats, Tensor? sums, Tensor? best, "
    "Tensor? which, Tensor? valid, float slope) -> Tensor",

    // (3, C) float32: sums of dy (points[j] - centers[i]) over the rows of idx (B, M, K).
    "edge_rows_offsets(Tensor dy, Tensor idx, Tensor points, Tensor? centers) -> Tensor",

    // x (R, F) with zeros in place of the rows whose gradient dout (R, C) is zero, of x's dtype.
    "edge_rows_used(Tensor x, Tensor dout) -> Tensor",
};

}  // namespace fusedops
