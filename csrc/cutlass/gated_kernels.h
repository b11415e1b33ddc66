// The products of a gated MLP that are one kernel where two or three would do (sm_90a, 16-bit
// matrices): what they compute, and the table of those that are compiled. Host only, no torch.
#pragma once

#include "cutlass/config.h"

namespace fusedops {

// kForward: gate = a b, up = a b2, d = act(gate) * up.
// kGradient: dh = a b; d = act(gate) * up, and in place of gate and up their gradients
// dh * up * act'(gate) and dh * act(gate).
// kInput: d = a b + a2 b2.
enum class GatedProduct : int8_t { kForward, kGradient, kInput };
inline constexpr int kNumGatedProducts = 3;

// m, n and k are those of each product; d, gate and up are (m, n).
struct GatedGemm : GemmProblem {
  GemmOperand a2, b2;
  void* gate = nullptr;  // kForward: null where gate and up are not wanted
  void* up = nullptr;
  int64_t gate_ld = 0;  // of both
};

// The tiles of d: 128 rows, and of columns
constexpr int gated_tile_columns(GatedProduct product) {
  return product == GatedProduct::kForward ? 64 : 128;
}

// CTAs of a cluster, which have tiles of d below each other.
constexpr int gated_cluster_rows(GatedProduct product) {
  return product == GatedProduct::kForward ? 2 : 1;
}

using GatedRunFn = const char* (*)(const GatedGemm&, const LaunchContext&);

// Returns true so that a namespace-scope constant can hold the call.
bool register_gated(GatedProduct product, DType dtype, GatedRunFn run);

// Null where this build has none.
GatedRunFn find_gated(GatedProduct product, DType dtype);

}  // namespace fusedops
