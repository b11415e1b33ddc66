// Host side of the sum by destination.
#pragma once

#include <optional>

#include "csrc/common/host/launch.h"
#include "csrc/cuda/inverted_index/inverted_index.h"

namespace fusedops::cuda {

// A sum over entries of idx (B, M, K) with idx[b, m, k] = i into out[b, i] of (B, n, count).
struct ScatterRequest {
  Tensor rows;  // contiguous; row `entry / per_row` belongs to an entry
  int64_t pitch, first, count;
  int64_t per_row;
  Tensor idx;                     // contiguous
  std::optional<Tensor> weights;  // contiguous, one per entry
  int64_t n;
  bool fp32;  // the result is float32 for any but float64
};

Tensor scatter_rows(const LaunchScope& scope, const ScatterRequest& request);

// Likewise into out by the lists of idx, of which only the size of the first dimension is read.
void scatter_lists(const LaunchScope& scope, const ScatterRequest& request,
                   const InvertedIndex& lists, const Tensor& out);

}  // namespace fusedops::cuda
