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

// Warpgroup 0's panels hold gate, warpgroup 1's up: both for the tile whose epilogue it is.
struct GatedGradientShared {
  alignas(1024) uint8_t panels[2][kGatedPanelBytes];
  float sums[2][4][128];  // of dgate and dup, by warp
  uint64_t loaded;        // gate and up of this warpgroup's tile are there
  uint64_t free;          // warpgroup 0's: the results have left
};

template <class Element, GatedProduct kProduct>
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

template <class Element>
struct GatedTraits<Element, GatedProduct::kGradient>
    : KernelTraits<Element, 128, 128, 2, 1, Schedule::kPingpong, Major::kK, Major::kMN,
                   Epilogue::kFused> {
  static constexpr GatedProduct kProduct = GatedProduct::kGradient;
  struct Store {
    using Shared = GatedGradientShared;
  };
  static constexpr int kStages = 4;
};

template <class Element>
struct GatedTraits<Element, GatedProduct::kInput>
    : KernelTraits<Element, 128, 256, 2, 1, Schedule::kCooperative, Major::kK, Major::kMN,
                   Epilogue::kFused> {
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
  using Barrier = cutlass::arch::ClusterBarrier;
  using Loaded = cutlass::arch::ClusterTransactionBarrier;
  using Base::barrier, Base::p_, Base::thread_, Base::warpgroup_, Base::values_of, Base::unit_of;

 public:
  __device__ static void init(Shared& shared) {
    Loaded::init(&shared.loaded, 1);
    Barrier::init(&shared.free, 1);
  }

  __device__ TileStore(const StoreParams& params, Shared& shared, int warpgroup)
      : Base(params, warpgroup), both_(&shared - warpgroup) {}

  // ---- by one thread of the producer ----

  __device__ static void wait_until_free(Shared& shared, uint32_t phase) {
    Barrier::wait(&shared.free, phase);
  }

  // Gate and up of a tile that `warpgroup` multiplies.
  __device__ static void load(const StoreParams& p, Shared (&both)[2], int warpgroup,
                              const Tile& tile) {
    uint64_t* loaded = &both[warpgroup].loaded;
    Loaded::arrive_and_expect_tx(loaded, 4 * kGatedPanelBytes);
    constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      cute::SM90_TMA_LOAD_3D::copy(i % 2 ? &p.hidden : &p.aux, loaded, kHint,
                                   both[i % 2].panels[i / 2], tile.n * 128 + i / 2 * 64,
                                   tile.m * 128, 0);
    }
  }

  // ---- by the warpgroup ----

  __device__ void prepare(const Tile&, int) {}

  __device__ void run(float* acc, const Tile& tile, int) {
    Loaded::wait(&both_[warpgroup_].loaded, phase_);
    phase_ ^= 1;
    const bool sums = p_.column_sums != nullptr;
    with_activation(p_.activation, [&]<Activation kActivation>() {
      cute::for_each(cute::make_int_sequence<2>{}, [&](auto panel) {
        if (sums) {
          gradient_panel<kActivation, true>(acc, panel);
        } else {
          gradient_panel<kActivation, false>(acc, panel);
        }
        cute::tma_store_fence();
        barrier();
        if (thread_ == 0) {
          copy_out(p_.aux, both_[0].panels[panel], tile, panel);
          copy_out(p_.hidden, both_[1].panels[panel], tile, panel);
          cute::tma_store_arrive();
        }
      });
    });
    if (p_.store_hidden) store_product(acc, tile);
    if (sums) store_sums(tile);
    if (thread_ == 0) {
      cute::tma_store_wait<0>();
      Barrier::arrive(&both_[0].free);
    }
  }

  __device__ void finish() {}

 private:
  __device__ static void copy_out(const CUtensorMap& map, const uint8_t* from, const Tile& tile,
                                  int panel) {
    cute::SM90_TMA_STORE_3D::copy(&map, from, tile.n * 128 + panel * 64, tile.m * 128, 0);
  }

  // Gate and up in shared memory become their gradients, the accumulators act(gate) * up.
  template <Activation kActivation, bool kSums>
  __device__ __forceinline__ void gradient_panel(float* acc, int panel) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      float sums[2][4] = {};  // of dgate and dup: the two columns of j, those of j + 1
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        auto &gate_unit = unit_of(both_[0].panels[panel], m, j),
             &up_unit = unit_of(both_[1].panels[panel], m, j);
        uint32_t gate[4], up[4];
        cute::SM75_U32x4_LDSM_N::copy(gate_unit, gate[0], gate[1], gate[2], gate[3]);
        cute::SM75_U32x4_LDSM_N::copy(up_unit, up[0], up[1], up[2], up[3]);
        float* v = values_of(acc, panel, m, j);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 g = unpack<Element>(gate[i]), u = unpack<Element>(up[i]);
          const auto x = value_and_slope<kActivation, Base::kAccuracy>(g.x);
          const auto y = value_and_slope<kActivation, Base::kAccuracy>(g.y);
          const float2 d_gate{v[i * 2] * u.x * x.slope, v[i * 2 + 1] * u.y * y.slope};
          const float2 d_up{v[i * 2] * x.value, v[i * 2 + 1] * y.value};
          v[i * 2] = x.value * u.x;
          v[i * 2 + 1] = y.value * u.y;
          gate[i] = pack<Element, false>(d_gate.x, d_gate.y);
          up[i] = pack<Element, false>(d_up.x, d_up.y);
          if constexpr (kSums) {
            sums[0][i / 2 * 2] += d_gate.x;
            sums[0][i / 2 * 2 + 1] += d_gate.y;
            sums[1][i / 2 * 2] += d_up.x;
            sums[1][i / 2 * 2 + 1] += d_up.y;
          }
        }
        cute::SM90_U32x4_STSM_N::copy(gate[0], gate[1], gate[2], gate[3], gate_unit);
        cute::SM90_U32x4_STSM_N::copy(up[0], up[1], up[2], up[3], up_unit);
      }
      if constexpr (kSums) sum_rows(sums, panel * 64 + j * 8);
    }
  }

  // Sums over the rows of the warp, for columns 16 from `column` on.
  __device__ void sum_rows(float (&sums)[2][4], int column) {
    const int lane = thread_ % 32, warp = thread_ / 32;
#pragma unroll
    for (int kind = 0; kind < 2; ++kind) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
          sums[kind][i] += __shfl_xor_sync(~0u, sums[kind][i], step);
        }
        const int at = column + i / 2 * 8 + lane * 2 + i % 2;
        if (lane < 4) both_[warpgroup_].sums[kind][warp][at] = sums[kind][i];
      }
    }
  }

  // The four warps in order; their sums are there since the last barrier.
  __device__ void store_sums(const Tile& tile) const {
    const int column = tile.n * 128 + thread_;
    if (column >= p_.columns || tile.m >= p_.sum_rows) return;
    float* row = p_.column_sums + int64_t{tile.m} * 2 * p_.columns + column;
    for (int kind = 0; kind < 2; ++kind) {
      const auto& by_warp = both_[warpgroup_].sums[kind];
      row[kind * p_.columns] =
          (by_warp[0][thread_] + by_warp[1][thread_]) + (by_warp[2][thread_] + by_warp[3][thread_]);
    }
  }

  // act(gate) * up leaves through the panels whose gradients have left first.
  __device__ void store_product(const float* acc, const Tile& tile) {
    if (thread_ == 0) cute::tma_store_wait<1>();
    barrier();
    this->stage(acc, 0, both_[0].panels[0]);
    this->stage(acc, 1, both_[1].panels[0]);
    cute::tma_store_fence();
    barrier();
    if (thread_ == 0) {
      copy_out(p_.d, both_[0].panels[0], tile, 0);
      copy_out(p_.d, both_[1].panels[0], tile, 1);
      cute::tma_store_arrive();
    }
  }

  Shared* both_;
  uint32_t phase_ = 0;
};

}  // namespace fusedops::sm90
