// The vocabulary of the reductions: what is reduced how. No torch, no CUDA.
#pragma once

#include <cstdint>

#include "csrc/common/element.h"

namespace fusedops {

// NOTE: reduction.py holds the same table; tests/reduce/test_reduce.py compares them.
enum class Reduction : int8_t {
  kSum = 0,
  kMean = 1,
  kProd = 2,
  kProdNonzero = 3,  // zeros count as ones: what the gradient of prod needs
  kAmax = 4,
  kAmin = 5,
  kNorm1 = 6,
  kNorm2 = 7,
  kNormInf = 8,
  kNormMinusInf = 9,
  kLogsumexp = 10,
  kCountNonzero = 11,
  kAny = 12,
  kAll = 13,
  kArgmax = 14,
  kArgmin = 15,
};
inline constexpr int kNumReductions = 16;

inline constexpr const char* kReductionNames[kNumReductions] = {
    "sum",  "mean", "prod",      "prod_nonzero",  "amax", "amin", "norm",   "norm",
    "norm", "norm", "logsumexp", "count_nonzero", "any",  "all",  "argmax", "argmin"};

// Whether the result is an index of the reduced dimensions.
constexpr bool is_arg(Reduction r) { return r == Reduction::kArgmax || r == Reduction::kArgmin; }

// The reductions that choose an element: nothing to choose from is an error.
constexpr bool needs_elements(Reduction r) {
  return r == Reduction::kAmax || r == Reduction::kAmin || r == Reduction::kNormInf ||
         r == Reduction::kNormMinusInf || is_arg(r);
}

// Defined for floating elements only.
constexpr bool is_floating_only(Reduction r) {
  return r == Reduction::kMean || r == Reduction::kProdNonzero || r == Reduction::kLogsumexp ||
         (r >= Reduction::kNorm1 && r <= Reduction::kNormMinusInf);
}

}  // namespace fusedops
