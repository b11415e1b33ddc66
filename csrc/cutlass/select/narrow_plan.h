// Whether a linear layer's gradients are formed by the kernel for few features (sm90_narrow.cuh).
// Host only, no torch.
#pragma once

#include "csrc/cutlass/select/operands.h"

namespace fusedops {

struct NarrowProblem {
  DType dtype;
  Activation activation;
  int64_t m, n, k;
  bool dx, dweight, dbias;  // wanted
};

struct NarrowOperands {
  MatrixView dy, saved, x, weight;  // saved: without data where the activation needs none
};

// Whether the kernel can run the problem and pays.
bool narrow_takes(const NarrowProblem& problem, const NarrowOperands& operands,
                  const DeviceModel& device);

}  // namespace fusedops
