// Host face of splitk_reduce.cuh.
#pragma once

#include "csrc/cutlass/problem.h"

namespace fusedops {

// d = act(sum of `slices` fp32 (m, n) partial products + bias), d and preact contiguous (m, n) of
// the problem's dtype, or fp32 d for Epilogue::kAccumulator. Reads m, n, d, preact, bias,
// activation, epilogue and dtype of the problem.
const char* splitk_reduce(const GemmProblem& problem, const float* partial, int64_t slices,
                          const LaunchContext& context);

}  // namespace fusedops
