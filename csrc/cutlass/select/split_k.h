// Which numbers of slices of K are candidates, for the families that write slices (sm90, sm80).
// Host only.
#pragma once

#include "csrc/common/int_math.h"
#include "csrc/cutlass/problem.h"

namespace fusedops {

inline constexpr int kSliceChoices[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128};
inline constexpr int kMostSlices = 128;

// Whether K may be cut into so many slices.
inline bool slices_allowed(const GemmProblem& p, int slices) {
  constexpr int64_t kMinSliceK = 256;  // a shorter slice is all prologue
  if (slices == 1) return true;
  if (p.dtype == DType::kFloat64) return false;           // partial sums would be rounded to fp32
  if (p.epilogue > Epilogue::kAccumulator) return false;  // splitk_reduce has no such epilogue
  if (p.ldd != p.n) return false;                         // nor such rows
  return p.slices == 1 && p.k / slices >= kMinSliceK;
}

// The product that a kernel sees where K is cut into so many slices. splitk_reduce applies what the
// epilogue does not, and launch_plan sees to `accumulate`.
inline GemmProblem sliced(const GemmProblem& problem, int slices) {
  GemmProblem p = problem;
  p.accumulate = false;
  if (slices > 1) {
    p.epilogue = Epilogue::kAccumulator;
    p.activation = Activation::kNone;
  }
  return p;
}

// The product that writes so many slices of K or a few less, all but the address of the slices:
// d of (slices, m, n) fp32.
inline GemmProblem in_slices(const GemmProblem& problem, int slices) {
  GemmProblem p = problem;
  p.slice_k = round_up(ceil_div(p.k, slices), 64);
  p.slices = ceil_div(p.k, p.slice_k);
  p.slice_stride = p.m * p.n;
  p.epilogue = Epilogue::kAccumulator;
  p.accumulate = false;
  p.bias = nullptr;
  p.preact = nullptr;
  p.activation = Activation::kNone;
  return p;
}

}  // namespace fusedops
