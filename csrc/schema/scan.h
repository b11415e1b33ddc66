// Schemas: scans, histograms, segment reductions and top-k.
#pragma once

namespace fusedops {

inline constexpr const char* kScanSchemas[] = {
    // Running sums and products of x along dim, shape of x; integers give int64.
    "cumsum(Tensor x, int dim, bool exclusive, bool reverse) -> Tensor",
    "cumprod(Tensor x, int dim, bool exclusive, bool reverse) -> Tensor",

    // (values, indices) of the largest or smallest element so far, shape of x.
    "cummax(Tensor x, int dim) -> (Tensor, Tensor)",
    "cummin(Tensor x, int dim) -> (Tensor, Tensor)",

    // (bins,) int64 counts of the integers 0 .. bins - 1 in x; other values are not counted.
    "bincount(Tensor x, int bins) -> Tensor",

    // (bins,) int64 counts of x in bins of equal width over [low, high].
    "histogram(Tensor x, int bins, float low, float high) -> Tensor",

    // (y, index) of x (E, ...) over the rows offsets[s] .. offsets[s + 1] of each segment; kind:
    // sum,
    // mean, max, min. index (S, ...) names the row of a max or min, else has shape (0,).
    "segment_reduce(Tensor x, Tensor offsets, int kind) -> (Tensor, Tensor)",
    "segment_reduce_backward(Tensor dy, Tensor offsets, Tensor? index, int rows, bool mean) "
    "-> Tensor",

    // (values, indices), both (..., k): the k largest or smallest of each row of x (..., N),
    // sorted.
    "topk(Tensor x, int k, bool largest) -> (Tensor, Tensor)",
};

}  // namespace fusedops
