// The layout of fp32 operands split into bf16 parts, shared by the splitting kernel and the GEMM
// that reads it. Host only.
#pragma once

#include "cutlass/gemm.h"

namespace fusedops {

// x = p1 + p2 + p3 exactly (8 significant bits each). a * b keeps the products whose parts sum to
// at most 4: a1 b1 + a1 b2 + a2 b1 + a2 b2 + a1 b3 + a3 b1; what is dropped is below 2^-24 of |a
// b|.
inline constexpr int kSplitProducts = 6;
// Per chunk of K the six products stand side by side along K, smallest first, so that one chain of
// MMAs adds them.
inline constexpr int kSplitChunk = 64;

inline constexpr int64_t split_columns(int64_t k) {
  return (k + kSplitChunk - 1) / kSplitChunk * kSplitChunk * kSplitProducts;
}

enum class SplitSide { kA, kB };

// A strided fp32 matrix: rows of A (M, K), or columns of B seen as (N, K).
struct SplitSource {
  const float* data;
  int64_t rows, k;
  int64_t row_stride, k_stride;
};

// out: (rows, split_columns(k)) bf16. Sets *nonfinite (zeroed by the caller) where it meets Inf or
// NaN.
const char* split_fp32(SplitSide side, const SplitSource& source, void* out, int* nonfinite,
                       const LaunchContext& context);

// What the split cannot express, Inf times a part that is zero, gives NaN where fp32 has Inf: with
// *nonfinite set, recomputes the NaN elements of the problem's output in plain fp32.
const char* repair_nonfinite(const SplitSource& a, const SplitSource& b, const GemmProblem& problem,
                             const int* nonfinite, const LaunchContext& context);

}  // namespace fusedops
