// The products of a gated MLP that are one kernel where two or three would do (sm_90a, 16-bit
// matrices): what they compute, and the table of those that are compiled. Host only, no torch.
#pragma once

#include "cutlass/sm90_configs.h"

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

// kForward and kGradient have tiles of d of 128 rows, and of columns
constexpr int gated_tile_columns(GatedProduct product) {
  return product == GatedProduct::kForward ? 64 : 128;
}

// in clusters of CTAs that have tiles below each other.
constexpr int gated_cluster_rows(GatedProduct product) {
  return product == GatedProduct::kForward ? 2 : 1;
}

// kInput has tiles of kSm90Configs: those of large products a (K contiguous) @ b (N contiguous).
constexpr bool gated_input_compiled(int config) {
  const GemmConfig& c = kSm90Configs[config];
  return (c.variants & sm90::kDgrad) != 0 && c.tile_m * c.tile_n >= 128 * 128 &&
         (c.schedule == Schedule::kCooperative || c.cluster_m * c.cluster_n == 1);
}

using GatedRunFn = const char* (*)(const GatedGemm&, const LaunchContext&);

// config: of kInput; 0 for the others.
void register_gated(GatedProduct product, DType dtype, int config, GatedRunFn run);

// Null where this build has none.
GatedRunFn find_gated(GatedProduct product, DType dtype, int config);

}  // namespace fusedops
