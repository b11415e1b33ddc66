// Schemas: neighbours in point clouds. points (B, N, D), queries (B, M, D), or packed (P, D) and
// (Q, D) with offsets; grid is point_grid(points); algorithm is a code of common/neighbours.h.
#pragma once

namespace fusedops {

inline constexpr const char* kNeighbourSchemas[] = {
    // The index over points, as bytes.
    "point_grid(Tensor points, Tensor? lengths, Tensor? offsets) -> Tensor",

    // (idx, dist), both (B, M, k) or (Q, k).
    "knn(Tensor points, Tensor queries, Tensor? lengths, Tensor? query_lengths, Tensor? offsets, "
    "Tensor? query_offsets, Tensor? grid, int k, int norm, int algorithm) -> (Tensor, Tensor)",

    // (dpoints, dqueries) from the gradient of dist.
    "knn_backward(Tensor grad, Tensor points, Tensor queries, Tensor idx, int norm) "
    "-> (Tensor, Tensor)",

    // (idx, counts, dist2): (B, M, k), (B, M), (B, M, k).
    "ball_query(Tensor points, Tensor queries, Tensor? lengths, Tensor? query_lengths, "
    "Tensor? offsets, Tensor? query_offsets, Tensor? grid, float radius, int k, bool nearest, "
    "bool pad_first, bool closed, int algorithm) -> (Tensor, Tensor, Tensor)",

    // (idx, counts) of one to four radii in one pass over the points, each as ball_query's: idx
    // flat,
    // radius after radius, (B M (k_1 + ... + k_S),); counts (S, B, M).
    "ball_query_scales(Tensor points, Tensor queries, Tensor? lengths, Tensor? query_lengths, "
    "Tensor? offsets, Tensor? query_offsets, float[] radii, int[] ks, bool pad_first, "
    "bool closed) -> (Tensor, Tensor)",

    // How many points lie within the radius of each query, (B, M) or (Q,).
    "radius_count(Tensor points, Tensor queries, Tensor? lengths, Tensor? query_lengths, "
    "Tensor? offsets, Tensor? query_offsets, Tensor? grid, float radius, bool closed, "
    "int algorithm) -> Tensor",

    // (idx, dist2), both (total,): query row i's are starts[i] to starts[i + 1], index ascending.
    "radius_fill(Tensor points, Tensor queries, Tensor? lengths, Tensor? query_lengths, "
    "Tensor? offsets, Tensor? query_offsets, Tensor? grid, Tensor starts, float radius, "
    "bool closed, int algorithm, int total) -> (Tensor, Tensor)",
};

}  // namespace fusedops
