// Host face of split_fp32.cuh.
#pragma once

#include "csrc/cutlass/configs/operand_layout.h"
#include "csrc/cutlass/problem.h"

namespace fusedops {

enum class SplitSide { kA, kB };

// A strided fp32 matrix: rows of A (M, K), or columns of B seen as (N, K).
struct SplitSource {
  const float* data;
  int64_t rows, k;
  int64_t row_stride, k_stride;
};

// out: (rows, split_columns(k)) bf16. Sets *nonfinite (zeroed by the caller) where it meets Inf or
// NaN.
const char* split_fp32(SplitSide side, const SplitSource& source, void* out, int* nonfinite,
                       const LaunchContext& context);

// What the split cannot express, Inf times a part that is zero, gives NaN where fp32 has Inf: with
// *nonfinite set, recomputes the NaN elements of the problem's output in plain fp32.
const char* repair_nonfinite(const SplitSource& a, const SplitSource& b, const GemmProblem& problem,
                             const int* nonfinite, const LaunchContext& context);

}  // namespace fusedops
