// act(gate) * up of a pingpong kernel's accumulators (gated_configs.h): the left half of each tile
// is of gate, the right half of up.
#pragma once

#include "csrc/common/device/value_and_slope.cuh"
#include "csrc/cutlass/kernels/gated/sm90_gated_traits.cuh"
#include "csrc/cutlass/kernels/hopper/rolled.cuh"

namespace fusedops::sm90 {

// What one warpgroup stages.
struct GatedForwardShared {
  alignas(1024) uint8_t staging[2][kGatedPanelBytes];
};

template <class Element, int kConfig>
struct GatedTraits<Element, GatedProduct::kForward, kConfig>
    : GatedTile<Element, GatedProduct::kForward, kConfig> {
  struct Staging {
    using Shared = GatedForwardShared;
    static constexpr int kPanelRows = 128;
  };
  static constexpr int kStages = 5;
};

template <class Element, int kConfig>
class TileEpilogue<GatedTraits<Element, GatedProduct::kForward, kConfig>> {
  using Shared = GatedForwardShared;

 public:
  __device__ static void init(Shared&) {}
  __device__ TileEpilogue(const EpilogueParams& params, Shared& shared, int warpgroup)
      : p_(params), shared_(shared), warpgroup_(warpgroup), thread_(threadIdx.x % 128) {}

  __device__ void prefetch(const Tile&) {}
  __device__ void prepare(const Tile&, int) {}

  // load_aux: gate and up are wanted, too.
  __device__ void run(float* acc, const Tile& tile, int) {
    if (p_.load_aux) {
      store(acc, 0, p_.aux, tile);
      store(acc, 1, p_.hidden, tile);
    }
    with_activation(p_.activation, [&]<Activation kActivation>() {
      if constexpr (kActivation == kAnyRare) activate_gate(acc);
      constexpr Activation kNow = kActivation == kAnyRare ? Activation::kNone : kActivation;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        float *gate = panel_values(acc, 0, m, 0), *up = panel_values(acc, 1, m, 0);
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          gate[i] = activate_as<kNow, kGatedAccuracy<Element>>(gate[i]) * up[i];
        }
      }
    });
    store(acc, 0, p_.d, tile);
  }

  __device__ void finish() {
    if (thread_ == 0) cute::tma_store_wait<0>();
  }

 private:
  __device__ void barrier() const {
    asm volatile("bar.sync %0, 128;" ::"r"(8 + warpgroup_) : "memory");
  }

  // A rare activation.
  __device__ __forceinline__ void activate_gate(float* acc) const {
    for_each_rolled<0, 8, 8>(
        [&]<int kUnit>(cute::Int<kUnit>) { return panel_values(acc, 0, kUnit / 4, kUnit % 4 * 2); },
        [&](float* v, int) {
          with_rare_activation(p_.activation, [&]<Activation kNow>() {
#pragma unroll
            for (int i = 0; i < 8; ++i) v[i] = activate_as<kNow, kGatedAccuracy<Element>>(v[i]);
          });
        });
  }

  // A panel leaves through the staging memory that the last panel but one has left.
  __device__ void store(const float* acc, int panel, const CUtensorMap& map, const Tile& tile) {
    uint8_t* staging = shared_.staging[slot_];
    slot_ ^= 1;
    if (thread_ == 0) cute::tma_store_wait<1>();
    barrier();
    stage_panel<Element>(acc, panel, staging);
    cute::tma_store_fence();
    barrier();
    if (thread_ == 0) {
      cute::SM90_TMA_STORE_3D::copy(&map, staging, tile.n * 64, tile.m * 128, 0);
      cute::tma_store_arrive();
    }
  }

  const EpilogueParams& p_;
  Shared& shared_;
  int warpgroup_, thread_;
  int slot_ = 0;
};

}  // namespace fusedops::sm90
