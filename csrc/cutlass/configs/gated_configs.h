// The products of a gated MLP that are one kernel where two or three would do (sm_90a, 16-bit
// matrices): what they compute, and the table of those that are compiled. Host only, no torch.
#pragma once

#include "csrc/cutlass/configs/sm90_configs.h"

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

// Which of kSm90Configs exist for a product; the first is what it has where nothing speaks for
// another. kForward: half of a tile's columns are of gate, half of up.
constexpr bool gated_compiled(GatedProduct product, int config) {
  const GemmConfig& c = kSm90Configs[config];
  const int ctas = c.cluster_m * c.cluster_n;
  switch (product) {
    case GatedProduct::kForward: return c.tile_m == 128 && c.tile_n == 128 && c.cluster_m == 2;
    case GatedProduct::kGradient: return c.tile_m == 256 && c.tile_n == 128 && ctas == 1;
    case GatedProduct::kInput: break;
  }
  return (c.variants & sm90::kDgrad) != 0 && c.tile_m * c.tile_n >= 128 * 128 &&
         (c.schedule == Schedule::kCooperative || ctas == 1);
}
constexpr int first_gated_config(GatedProduct product) {
  int config = 0;
  while (!gated_compiled(product, config)) ++config;
  return config;
}

using GatedRunFn = const char* (*)(const GatedGemm&, const LaunchContext&);

void register_gated(GatedProduct product, DType dtype, int config, GatedRunFn run);

// Null where this build has none.
GatedRunFn find_gated(GatedProduct product, DType dtype, int config);

}  // namespace fusedops
