// Whether a 16-bit product whose operands would have to be copied, because TMA and 16-byte copies
// cannot read them, takes a kernel that reads them as they lie (kernels/unaligned), and which; the
// same of any fp32 product. Host only, no torch.
#pragma once

#include <string>

#include "csrc/cutlass/configs/unaligned_configs.h"
#include "csrc/cutlass/select/operands.h"

namespace fusedops {

struct UnalignedPlan {
  const char* rejected = nullptr;  // the reason, or null
  GemmProblem problem;             // with its operands
  int tile = 0;                    // of unaligned::tile_of
  int slices = 1;                  // of K
  // Why an operand is copied first, or null: fp32 alone.
  const char* pack_a = nullptr;
  const char* pack_b = nullptr;
  double expected_us = 0;
};

// `problem` holds all but its operands, a is (M, K), b is (K, N).
UnalignedPlan plan_unaligned(const MatrixView& a, const MatrixView& b, const GemmProblem& problem,
                             const DeviceModel& device);

// What a product takes by a streaming kernel or by the others, with the copies that those want.
double otherwise_us(const MatrixView& a, const MatrixView& b, const GemmProblem& problem,
                    const DeviceModel& device);

// Whether the plan can run and is expected to be faster than that.
bool unaligned_takes(const UnalignedPlan& plan, const MatrixView& a, const MatrixView& b,
                     const GemmProblem& problem, const DeviceModel& device);

// "unaligned 64x128".
std::string unaligned_name(const UnalignedPlan& plan);

}  // namespace fusedops
