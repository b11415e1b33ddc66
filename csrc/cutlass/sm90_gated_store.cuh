// What the kernels of gated_kernels.h do with their accumulators: as sm90_store.cuh, with gate and
// up in place of one matrix.
#pragma once

#include "cuda/value_and_slope.cuh"
#include "cutlass/gated_kernels.h"
#include "cutlass/sm90_kernel.cuh"

namespace fusedops::sm90 {

// ---- what an instance is compiled for ----

inline constexpr int kGatedPanelBytes = 128 * kBoxRowBytes;  // of 128 rows, a warpgroup's

// Of one warpgroup.
struct GatedForwardShared {
  alignas(1024) uint8_t staging[2][kGatedPanelBytes];
};

// Half a tile of gate and up on its way through a CTA, and act(gate) * up.
struct GatedSlot {
  alignas(1024) uint8_t gate[kGatedPanelBytes];
  alignas(1024) uint8_t up[kGatedPanelBytes];
  alignas(1024) uint8_t product[kGatedPanelBytes];
};

// One of the two serves both warpgroups: as slot for the left half of each tile, as slot for the
// right half.
struct GatedGradientShared {
  GatedSlot slot;
  uint64_t loaded[2];  // gate and up are there, by warpgroup
  uint64_t ready;      // the results are there
};

// kConfig: of kInput.
template <class Element, GatedProduct kProduct, int kConfig = 0>
struct GatedTraits;

template <class Element>
struct GatedTraits<Element, GatedProduct::kForward>
    : KernelTraits<Element, 128, 128, 2, 1, Schedule::kPingpong, Major::kK, Major::kK,
                   Epilogue::kFused> {
  static constexpr GatedProduct kProduct = GatedProduct::kForward;
  struct Store {
    using Shared = GatedForwardShared;
  };
  static constexpr int kStages = 5;
};

// NOTE: a pair of CTAs would wait for each other's epilogues too: 5 % slower.
template <class Element>
struct GatedTraits<Element, GatedProduct::kGradient>
    : KernelTraits<Element, 128, 128, 1, 1, Schedule::kPingpong, Major::kK, Major::kMN,
                   Epilogue::kFused> {
  static constexpr GatedProduct kProduct = GatedProduct::kGradient;
  struct Store {
    using Shared = GatedGradientShared;
  };
  static constexpr int kStages = 4;
};

template <class Element, int kConfig>
struct GatedTraits<Element, GatedProduct::kInput, kConfig>
    : KernelTraits<Element, kSm90Configs[kConfig].tile_m, kSm90Configs[kConfig].tile_n,
                   kSm90Configs[kConfig].cluster_m, kSm90Configs[kConfig].cluster_n,
                   kSm90Configs[kConfig].schedule, Major::kK, Major::kMN, Epilogue::kFused> {
  static constexpr GatedProduct kProduct = GatedProduct::kInput;
};

// ---- panels: 128 rows of 64 columns ----

// One warpgroup's view of its accumulators and of panels in shared memory.
template <class Element>
class GatedPanels {
 protected:
  static constexpr Accuracy kAccuracy =
      cute::is_same_v<Element, cutlass::bfloat16_t> ? Accuracy::kBFloat16 : kAccuracyOf<Element>;

  __device__ GatedPanels(const StoreParams& params, int warpgroup)
      : p_(params), warpgroup_(warpgroup), thread_(threadIdx.x % 128) {}

  __device__ void barrier() const {
    asm volatile("bar.sync %0, 128;" ::"r"(8 + warpgroup_) : "memory");
  }

  // The eight accumulators of row block m (of two) and columns 8 j.. and 8 (j + 1).. of a panel.
  __device__ static float* values_of(float* acc, int panel, int m, int j) {
    return acc + m * 64 + (panel * 8 + j) * 4;
  }

  // Where this lane's row of an 8x8 matrix lies, for the matrices (upper, lower rows) x (columns
  // 8 j.., the next 8) of the warp's 16 rows.
  __device__ cute::uint128_t& unit_of(uint8_t* panel, int m, int j) const {
    const int lane = thread_ % 32;
    const int row = m * 64 + thread_ / 32 * 16 + (lane / 8 % 2) * 8 + lane % 8;
    uint8_t* at = panel + row * kBoxRowBytes + (((j + lane / 16) ^ (lane % 8)) * 16);
    return *reinterpret_cast<cute::uint128_t*>(at);
  }

  __device__ __forceinline__ void stage(const float* acc, int panel, uint8_t* to) const {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        const float* v = values_of(const_cast<float*>(acc), panel, m, j);
        cute::SM90_U32x4_STSM_N::copy(
            pack<Element, false>(v[0], v[1]), pack<Element, false>(v[2], v[3]),
            pack<Element, false>(v[4], v[5]), pack<Element, false>(v[6], v[7]), unit_of(to, m, j));
      }
    }
  }

  const StoreParams& p_;
  int warpgroup_, thread_;
};

// ---- act(gate) * up of accumulators ----

template <class Element>
class TileStore<GatedTraits<Element, GatedProduct::kForward>> : GatedPanels<Element> {
  using Base = GatedPanels<Element>;
  using Shared = GatedForwardShared;
  using Base::barrier, Base::p_, Base::thread_, Base::values_of;

 public:
  __device__ static void init(Shared&) {}
  __device__ TileStore(const StoreParams& params, Shared& shared, int warpgroup)
      : Base(params, warpgroup), shared_(shared) {}

  __device__ void prepare(const Tile&, int) {}

  // Panel 0 of the accumulators is gate, panel 1 up.
  __device__ void run(float* acc, const Tile& tile, int) {
    if (p_.load_aux) {
      store(acc, 0, p_.aux, tile);
      store(acc, 1, p_.hidden, tile);
    }
    with_activation(p_.activation, [&]<Activation kActivation>() {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        float *gate = values_of(acc, 0, m, 0), *up = values_of(acc, 1, m, 0);
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          gate[i] = activate_as<kActivation, Base::kAccuracy>(gate[i]) * up[i];
        }
      }
    });
    store(acc, 0, p_.d, tile);
  }

  __device__ void finish() {
    if (thread_ == 0) cute::tma_store_wait<0>();
  }

 private:
  // A panel leaves through the staging memory that the last panel but one has left.
  __device__ void store(const float* acc, int panel, const CUtensorMap& map, const Tile& tile) {
    uint8_t* staging = shared_.staging[slot_];
    slot_ ^= 1;
    if (thread_ == 0) cute::tma_store_wait<1>();
    barrier();
    this->stage(acc, panel, staging);
    cute::tma_store_fence();
    barrier();
    if (thread_ == 0) {
      cute::SM90_TMA_STORE_3D::copy(&map, staging, tile.n * 64, tile.m * 128, 0);
      cute::tma_store_arrive();
    }
  }

  Shared& shared_;
  int slot_ = 0;
};

// ---- the gradients of gate and up from accumulators of dh ----

template <class Element>
class TileStore<GatedTraits<Element, GatedProduct::kGradient>> : GatedPanels<Element> {
  using Base = GatedPanels<Element>;
  using Shared = GatedGradientShared;
  using Ready = cutlass::arch::ClusterBarrier;
  using Loaded = cutlass::arch::ClusterTransactionBarrier;
  using Base::p_, Base::warpgroup_, Base::values_of, Base::unit_of;

 public:
  __device__ static void init(Shared& shared) {
    for (uint64_t& loaded : shared.loaded) Loaded::init(&loaded, 1);
    Ready::init(&shared.ready, 128);
  }

  __device__ TileStore(const StoreParams& params, Shared& shared, int warpgroup)
      : Base(params, warpgroup), halves_(&shared - warpgroup) {}

  // ---- by one thread of the producer ----

  // Gate and up of half a tile that `warpgroup` multiplies.
  __device__ static void load(const StoreParams& p, Shared (&halves)[2], int half, int warpgroup,
                              const Tile& tile) {
    Shared& s = halves[half];
    uint64_t* loaded = &s.loaded[warpgroup];
    const int column = tile.n * 128 + half * 64, row = tile.m * 128;
    constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    Loaded::arrive_and_expect_tx(loaded, 2 * kGatedPanelBytes);
    cute::SM90_TMA_LOAD_3D::copy(&p.aux, loaded, kHint, s.slot.gate, column, row, 0);
    cute::SM90_TMA_LOAD_3D::copy(&p.hidden, loaded, kHint, s.slot.up, column, row, 0);
  }

  // The results of half a tile leave, once they are there; until the slot is free.
  __device__ static void store(const StoreParams& p, Shared (&halves)[2], int half, uint32_t phase,
                               const Tile& tile) {
    Shared& s = halves[half];
    Ready::wait(&s.ready, phase);
    const int column = tile.n * 128 + half * 64, row = tile.m * 128;
    cute::SM90_TMA_STORE_3D::copy(&p.aux, s.slot.gate, column, row, 0);
    cute::SM90_TMA_STORE_3D::copy(&p.hidden, s.slot.up, column, row, 0);
    if (p.store_hidden) cute::SM90_TMA_STORE_3D::copy(&p.d, s.slot.product, column, row, 0);
    cute::tma_store_arrive();
    cute::tma_store_wait<0>();
  }

  // ---- by the warpgroup ----

  __device__ void prepare(const Tile&, int) {}

  __device__ void run(float* acc, const Tile&, int) {
    with_activation(p_.activation, [&]<Activation kActivation>() {
      cute::for_each(cute::make_int_sequence<2>{}, [&](auto half) {
        Loaded::wait(&halves_[half].loaded[warpgroup_], phase_);
        finish_half<kActivation>(acc, half, halves_[half].slot);
        cute::tma_store_fence();
        Ready::arrive(&halves_[half].ready);
      });
    });
    phase_ ^= 1;
  }

  __device__ void finish() {}

 private:
  // Gate and up become their gradients; act(gate) * up.
  template <Activation kActivation>
  __device__ __forceinline__ void finish_half(float* acc, int half, GatedSlot& slot) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t gate[2][4], up[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        load_unit(unit_of(slot.gate, m, j), gate[m]);
        load_unit(unit_of(slot.up, m, j), up[m]);
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const float* dh = values_of(acc, half, m, j);
        uint32_t product[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 g = unpack<Element>(gate[m][i]), u = unpack<Element>(up[m][i]);
          const auto x = value_and_slope<kActivation, Base::kAccuracy>(g.x);
          const auto y = value_and_slope<kActivation, Base::kAccuracy>(g.y);
          const float a = dh[i * 2], b = dh[i * 2 + 1];
          gate[m][i] = pack<Element, false>(a * u.x * x.slope, b * u.y * y.slope);
          up[m][i] = pack<Element, false>(a * x.value, b * y.value);
          product[i] = pack<Element, false>(x.value * u.x, y.value * u.y);
        }
        store_unit(unit_of(slot.gate, m, j), gate[m]);
        store_unit(unit_of(slot.up, m, j), up[m]);
        store_unit(unit_of(slot.product, m, j), product);
      }
    }
  }

  __device__ static void load_unit(const cute::uint128_t& unit, uint32_t (&r)[4]) {
    cute::SM75_U32x4_LDSM_N::copy(unit, r[0], r[1], r[2], r[3]);
  }
  __device__ static void store_unit(cute::uint128_t& unit, const uint32_t (&r)[4]) {
    cute::SM90_U32x4_STSM_N::copy(r[0], r[1], r[2], r[3], unit);
  }

  Shared* halves_;
  uint32_t phase_ = 0;
};

}  // namespace fusedops::sm90
