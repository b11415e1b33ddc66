// What the kernels of gated_configs.h are compiled for, and what their warpgroups do with panels.
#pragma once

#include "csrc/cutlass/configs/gated_configs.h"
#include "csrc/cutlass/kernels/sm90/sm90_kernel.cuh"

namespace fusedops::sm90 {

struct GatedParams : KernelParams {
  CUtensorMap a2, b2;
  int first_steps;  // kInput: of k_steps, those of the first product
  // kGradient:
  void *gate, *up, *hidden;     // hidden: act(gate) * up, or null
  uint32_t gate_ld, hidden_ld;  // elements
  uint32_t rows, columns;
};

template <class Element, GatedProduct kProduct_, int kConfig>
struct GatedTile
    : KernelTraits<Element, kSm90Configs[kConfig].tile_m, kSm90Configs[kConfig].tile_n,
                   kSm90Configs[kConfig].cluster_m, kSm90Configs[kConfig].cluster_n,
                   kSm90Configs[kConfig].schedule, Major::kK,
                   kProduct_ == GatedProduct::kForward ? Major::kK : Major::kMN, Epilogue::kFused> {
  static constexpr GatedProduct kProduct = kProduct_;
};

// Each product specialises this in a file of its own, but for kInput, which is sm90_kernel.cuh's.
template <class Element, GatedProduct kProduct, int kConfig>
struct GatedTraits : GatedTile<Element, kProduct, kConfig> {};

// ---- panels: 128 rows of 64 columns, a consumer's ----

inline constexpr int kGatedPanelBytes = 128 * kBoxRowBytes;

// The place of this lane's row of an 8x8 matrix, for the matrices (upper, lower rows) x (columns
// 8 j.., the next 8) of the warp's 16 rows.
__device__ inline cute::uint128_t& panel_unit(uint8_t* panel, int m, int j) {
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const int row = m * 64 + thread / 32 * 16 + (lane / 8 % 2) * 8 + lane % 8;
  uint8_t* at = panel + row * kBoxRowBytes + (((j + lane / 16) ^ (lane % 8)) * 16);
  return *reinterpret_cast<cute::uint128_t*>(at);
}

// The eight accumulators of row block m (of two) and columns 8 j.. and 8 (j + 1).. of a panel.
template <class Value>
__device__ Value* panel_values(Value* acc, int panel, int m, int j) {
  return acc + m * 64 + (panel * 8 + j) * 4;
}

template <class Element>
__device__ __forceinline__ void stage_panel(const float* acc, int panel, uint8_t* to) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float* v = panel_values(acc, panel, m, j);
      cute::SM90_U32x4_STSM_N::copy(
          pack<Element, false>(v[0], v[1]), pack<Element, false>(v[2], v[3]),
          pack<Element, false>(v[4], v[5]), pack<Element, false>(v[6], v[7]), panel_unit(to, m, j));
    }
  }
}

// How exact activations are.
template <class Element>
inline constexpr Accuracy kGatedAccuracy =
    cute::is_same_v<Element, cutlass::bfloat16_t> ? Accuracy::kBFloat16 : kAccuracyOf<Element>;

}  // namespace fusedops::sm90
