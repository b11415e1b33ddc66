// The gradients of a linear layer of few features in one kernel (sm90_narrow.cuh), where it
// pays.
#pragma once

#include "csrc/common/checks/linear_check.h"
#include "csrc/common/host/launch.h"
#include "csrc/cutlass/select/narrow_plan.h"

namespace fusedops {

// What is wanted of dx (M, K), dweight (N, K) and dbias (N,), all contiguous; else null.
struct NarrowGradients {
  const Tensor* dx;
  const Tensor* dweight;
  const Tensor* dbias;
};

// False where the kernel cannot or need not run: nothing was launched.
bool run_narrow_backward(const char* op, const LinearShape& shape, const NarrowOperands& operands,
                         const NarrowGradients& wanted, const LaunchScope& scope);

}  // namespace fusedops
