// The way from strided matrices to launched kernels: selection, packing of what the hardware cannot
// read, split-K, the fp32-accurate path. The ops in linear.cpp stand on this.
#pragma once

#include <optional>

#include "csrc/common/host/launch.h"
#include "csrc/cutlass/select/operands.h"

namespace fusedops {

// The GPU as selection sees it.
DeviceModel device_model(const LaunchScope& scope);

// The matrix (rows, C) of a (..., C) tensor; `holder` keeps the copy that is made when its leading
// dimensions do not collapse to one stride.
MatrixView rows_view(const Tensor& tensor, Tensor& holder);

// Whether kernels read a matrix both ways as well as they would a copy of padded rows: all but
// those of 16-bit rows that begin within 16 bytes.
bool are_addressable(const MatrixView& view, DType dtype, const LaunchScope& scope);

// Such a copy, yet without an address.
MatrixView padded_rows(const MatrixView& view, DType dtype);

// Copies (rows, k) into a K-contiguous buffer, which `holder` keeps, whose rows are padded with
// zeros to whole 16-byte accesses.
GemmOperand packed_operand(const char* op, DType dtype, const MatrixView& view, Tensor& holder,
                           const LaunchScope& scope);

// The matrix for two products: itself, or such a copy in `holder`.
MatrixView addressable_rows(const char* op, const MatrixView& view, DType dtype, Tensor& holder,
                            const LaunchScope& scope);

// What to compute: d = act(a @ b + bias).
struct GemmCall {
  const char* op;
  MatrixView a;  // (M, K)
  MatrixView b;  // (K, N)
  DType dtype;
  bool allow_tf32 = false;
  const Tensor* bias = nullptr;  // (N,)
  Activation activation = Activation::kNone;
  Epilogue epilogue = Epilogue::kFused;
  bool accumulate = false;           // of 16-bit operands, kAccumulator: d += a @ b
  const Tensor* residual = nullptr;  // kResidual, kNorm: contiguous (M, N)
  ColumnNorm norm = {};              // kNorm
};

// d and preact: contiguous (M, N) of the call's dtype; fp32 d for kAccumulator. Throws with the
// op's name on failure.
void run_gemm(const GemmCall& call, const Tensor& d, const Tensor* preact,
              const LaunchScope& scope);

// dz (M, N) = (a @ b) * act'(saved) in one kernel, with what else is wanted of: hidden (M, N) =
// act(saved), dbias (N,) = the column sums of dz in its dtype or fp32. All but a and b contiguous.
struct GradientOutputs {
  const Tensor* saved = nullptr;  // null: the activation needs none (saved_for_backward)
  const Tensor* dz = nullptr;
  const Tensor* hidden = nullptr;  // may be saved: each tile is read before it is written
  const Tensor* dbias = nullptr;
};

// False where no kernel has this epilogue for the problem: nothing was launched, and the caller
// takes the product and act_backward.h.
bool run_gemm_gradient(const GemmCall& call, const GradientOutputs& outputs,
                       const LaunchScope& scope);

// d = a @ b, and the moments of its columns (batch_norm_check.h). False where no kernel has that
// for the problem: nothing was launched.
bool run_gemm_moments(const GemmCall& call, const Tensor& d, const Tensor& moments,
                      const LaunchScope& scope);

// run_gemm with the call's epilogue, kResidual or kNorm. False where no kernel has it for the
// problem: nothing was launched.
bool run_gemm_fused(const GemmCall& call, const Tensor& d, const LaunchScope& scope);

// d += a @ b for 16-bit d: the sum of a product is rounded to d's dtype, and so is the sum with d.
// False where no kernel has it for the problem: nothing was launched.
bool run_gemm_adding(const GemmCall& call, const Tensor& d, const LaunchScope& scope);

// The same as run_gemm through a given plan: tuning and tests.
void run_gemm_with_plan(const GemmCall& call, const GemmPlan& plan, const Tensor& d,
                        const Tensor* preact, const LaunchScope& scope);

}  // namespace fusedops
