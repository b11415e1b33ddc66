// Products through the streaming kernels (kernels/thin), without packed operands.
#pragma once

#include "csrc/cutlass/launch/gemm_launch.h"

namespace fusedops {

// False where another kernel is expected to be faster or none of these can run: nothing was
// launched. `problem` is the call's, without operands.
bool run_thin(const GemmCall& call, const GemmProblem& problem, const LaunchScope& scope);

// The product of a call without bias and activation, into a dense d; no addresses.
GemmProblem plain_problem(const GemmCall& call);

// Whether run_gemm takes one of them for such a call.
bool takes_thin(const GemmCall& call, const LaunchScope& scope);

}  // namespace fusedops
