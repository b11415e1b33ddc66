// Which numbers of slices of K are candidates, for the families that write slices (sm90, sm80).
// Host only.
#pragma once

#include "csrc/cutlass/problem.h"

namespace fusedops {

inline constexpr int kSliceChoices[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128};
inline constexpr int kMostSlices = 128;

// Whether K may be cut into so many slices.
inline bool slices_allowed(const GemmProblem& p, int slices) {
  constexpr int64_t kMinSliceK = 256;  // a shorter slice is all prologue
  if (slices == 1) return true;
  // NOTE: fp64 partial sums would be rounded to fp32, bf16 parts of fp32 be cut apart.
  if (p.dtype == DType::kFloat64 || p.split_parts) return false;
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

}  // namespace fusedops
