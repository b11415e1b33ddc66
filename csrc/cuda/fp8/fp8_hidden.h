// Host face of fp8_hidden.cuh: backward at the hidden layer of an MLP, plain or gated.
#pragma once

#include "csrc/cuda/fp8/fp8_quantize.h"

namespace fusedops {

// Matrices are (m, k) of 16-bit elements; rows begin at units of 16 bytes. Each slot has what
// is read (x) and what comes out for it:
//   gradient: dh, gives dz = dh act'(saved), with a factor dh factor act'(saved);
//   saved:    what forward saved, or what act was given where there is a factor; gives the hidden
//             values act(z), with a factor act(saved) factor;
//   factor:   gives dh act(saved).
struct Fp8Hidden {
  Fp8Quantize gradient, saved, factor;
  bool gated = false;
  Activation activation = Activation::kNone;
  int64_t m = 0, k = 0;
};

// Returns null or the reason of the failure.
const char* launch_fp8_hidden(const Fp8Hidden& problem, const LaunchContext& context);

}  // namespace fusedops
