// Schemas: Point clouds, sampling and grouping.
#pragma once

namespace fusedops {

inline constexpr const char* kPointsSchemas[] = {
    // (B, n) int64 indices, -1 beyond a cloud's length; points (B, N, D) with lengths (B,), or
    // (P, D) with offsets (B + 1,). With out_offsets (B + 1,) the result is (n,), cloud b's part
    // out_offsets[b] to out_offsets[b + 1]. No cloud is longer than max_length.
    "farthest_point_sample(Tensor points, Tensor? lengths, Tensor? offsets, Tensor? start, "
    "Tensor? out_offsets, int n, int max_length) -> Tensor",
};

}  // namespace fusedops
