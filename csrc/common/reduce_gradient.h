// The gradients of reductions that read the input. No torch, no CUDA.
#pragma once

#include <cstdint>

namespace fusedops {

// dx = f(x, scale, shift), elementwise with scale and shift broadcast.
// NOTE: python/fusedops/_core/reduction.py holds the same table.
enum class ReduceGradient : int8_t {
  kAffine = 0,    // scale * (x - shift); shift may be missing
  kSign = 1,      // scale * sign(x); no shift
  kExp = 2,       // scale * exp(x - shift)
  kEqual = 3,     // scale * (x == shift)
  kEqualAbs = 4,  // scale * sign(x) * (|x| == shift)
  kProd = 5,      // scale / x where shift, the number of zeros, is 0; scale at a single zero
};
inline constexpr int kNumReduceGradients = 6;

}  // namespace fusedops
