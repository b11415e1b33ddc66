// Host face of the streaming kernels: a matrix of many rows by one with a short side, sums over
// many rows, and one row by a weight.
#pragma once

#include "csrc/common/launch_context.h"
#include "csrc/cutlass/configs/dots_problem.h"
#include "csrc/cutlass/configs/thin_problem.h"
#include "csrc/cutlass/configs/wide_problem.h"

namespace fusedops::thin {

// Launch; return null or the reason of the failure.
const char* multiply_rows(const Rows& problem, const LaunchContext& context);

// The same where few features become many.
const char* multiply_wide(const Rows& problem, const LaunchContext& context);

// Only the blocks' sums, (slots, n, k) in problem.partial: the caller adds them up.
const char* add_rows(const Sums& problem, const LaunchContext& context);

const char* multiply_row(const Dots& problem, const DotsPlan& plan, const LaunchContext& context);

}  // namespace fusedops::thin
