// Products of 16-bit operands that begin anywhere, without packed copies of them, and of fp32 ones
// over parts.
#pragma once

#include "csrc/cutlass/launch/gemm_launch.h"

namespace fusedops {

// False where copies and another kernel are expected to be faster or no such kernel can run:
// nothing was launched. `problem` is the call's, without operands.
bool run_unaligned(const GemmCall& call, const GemmProblem& problem, const LaunchScope& scope);

// Whether run_gemm reads a of this call, without bias and activation and into a dense d, as it
// lies: by one of these kernels, by a streaming one, or because the others can.
bool reads_in_place(const GemmCall& call, const LaunchScope& scope);

// Whether such a kernel and passes over d, which read and write so many matrices of its size, are
// expected to take less time than the copies and the product with this epilogue: kGrad, kResidual.
struct Passes {
  int launches, matrices;
};
bool takes_apart(const GemmCall& call, Epilogue epilogue, Passes passes, const LaunchScope& scope);

// The product in this tile and so many slices of K, whatever is faster: tuning and tests. Throws
// where it cannot run. Outputs as those of run_gemm.
void run_unaligned_tile(const GemmCall& call, int tile, int slices, const Tensor& d,
                        const Tensor* preact, const LaunchScope& scope);

}  // namespace fusedops
