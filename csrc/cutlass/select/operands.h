// How the strided operands of a product reach the kernels: in place, packed into a dense copy, or
// as bf16 parts of fp32; and whether its result leaves through padded rows. Decisions only:
// gemm_launch.cpp acts on them, explain shows them. Host only.
#pragma once

#include "csrc/cutlass/select/select.h"

namespace fusedops {

// A strided (rows, cols) matrix over memory that its owner keeps alive.
struct MatrixView {
  const void* data;
  int64_t rows, cols;
  int64_t row_stride, col_stride;  // elements

  MatrixView transposed() const { return {data, cols, rows, col_stride, row_stride}; }
};

// Whether every row of an operand begins at 16 bytes.
bool begins_aligned(const GemmProblem& p, const GemmOperand& operand);

// A view of (rows, k) as the kernels take it: one index is contiguous. False when neither is.
bool natural_operand(const MatrixView& view, GemmOperand& operand);

struct OperandPlan {
  GemmProblem problem;           // a packed operand has no address yet; k includes its padding
  const char* pack_a = nullptr;  // the reason for the copy, or null
  const char* pack_b = nullptr;
  bool pads_d = false;  // rows of d and the bias are problem.ldd long in memory yet to be found
};

// `problem` holds all but its operands, a is (M, K), b is (K, N).
OperandPlan plan_operands(const MatrixView& a, const MatrixView& b, const GemmProblem& problem,
                          const DeviceModel& device);

}  // namespace fusedops
