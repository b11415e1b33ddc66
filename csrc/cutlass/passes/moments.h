// Host face of moments.cuh: raw pointers, sizes and a stream.
#pragma once

#include "csrc/common/launch_context.h"

namespace fusedops {

// Joins the moments of columns over short blocks of rows, as products with Epilogue::kMoments write
// them, to those of long ones.
struct JoinMoments {
  const float* partial;  // (blocks of rows, cols, 2): means, and sums of squares about them
  int64_t rows, cols;
  int64_t rows_per_block;  // of partial: divides rows_per_result
  int64_t rows_per_result;
  double* moments;  // (2, cols, long blocks of rows)
};

// Launches; returns null or the reason of the failure.
const char* join_moments(const JoinMoments& problem, const LaunchContext& context);

}  // namespace fusedops
