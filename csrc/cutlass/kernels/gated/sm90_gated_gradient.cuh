// The gradients of gate and up (gated_configs.h): consumers leave dh, the gradient of
// act(gate) * up, in shared memory, rounded to the output's type as torch's product is, and
// multiply the next tile; meanwhile a warpgroup of its own, the epilogue warpgroup, reads gate and
// up and writes what is elementwise.
#pragma once

#include "csrc/common/device/value_and_slope.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/cutlass/kernels/gated/sm90_gated_traits.cuh"

namespace fusedops::sm90 {

// What a consumer has computed, for the epilogue warpgroup.
struct GatedGradientShared {
  alignas(1024) uint8_t panels[2][kGatedPanelBytes];
  uint64_t full, free;
};

template <class Element, int kConfig>
struct GatedTraits<Element, GatedProduct::kGradient, kConfig>
    : GatedTile<Element, GatedProduct::kGradient, kConfig> {
  static constexpr bool kEpilogueWarpgroup = true;
  struct Staging {
    using Shared = GatedGradientShared;
  };
  static constexpr int kStages = 3;
};

// ---- consumers ----

template <class Element, int kConfig>
class TileEpilogue<GatedTraits<Element, GatedProduct::kGradient, kConfig>> {
  using Shared = GatedGradientShared;
  using Barrier = cutlass::arch::ClusterBarrier;

 public:
  __device__ static void init(Shared& shared) {
    Barrier::init(&shared.full, 128);
    Barrier::init(&shared.free, 128);
  }

  __device__ TileEpilogue(const EpilogueParams&, Shared& shared, int) : shared_(shared) {}

  __device__ void prefetch(const Tile&) {}
  __device__ void prepare(const Tile&, int) {}

  __device__ void run(const float* acc, const Tile&, int) {
    Barrier::wait(&shared_.free, phase_ ^ 1);
#pragma unroll
    for (int panel = 0; panel < 2; ++panel) stage_panel<Element>(acc, panel, shared_.panels[panel]);
    Barrier::arrive(&shared_.full);
    phase_ ^= 1;
  }

  __device__ void finish() {}

 private:
  Shared& shared_;
  uint32_t phase_ = 0;
};

// ---- the epilogue warpgroup ----

// Each thread has 8 columns of every kRowsPerPass-th row. What it reads from global memory is on
// its way while it computes the rows before.
template <class T>
class GatedEpilogueWarpgroup {
  using Element = typename T::Element;
  using Shared = GatedGradientShared;
  using Barrier = cutlass::arch::ClusterBarrier;

  static constexpr int kUnits = T::kTileN / 8, kRowsPerPass = 128 / kUnits;
  static constexpr int kPasses = 4;  // at a time
  static constexpr int kRowsAtATime = kPasses * kRowsPerPass;
  static constexpr int kTimes = T::kTileM / kRowsAtATime, kTimesEach = kTimes / 2;
  static_assert(T::kTileM == 256 && T::kTileN == 128);  // two consumers with two panels

  using Unit = Vec<uint32_t, 4>;  // 8 values
  struct Rows {
    Unit gate[kPasses], up[kPasses];
  };

 public:
  __device__ GatedEpilogueWarpgroup(const GatedParams& params, Shared (&shared)[2])
      : p_(params), shared_(shared), thread_(threadIdx.x % 128) {}

  __device__ void run() {
    with_activation(p_.epilogue.activation, [&]<Activation kActivation>() {
      for (TileScheduler scheduler(p_.schedule, {}, T::kClusterM, T::kClusterN); scheduler.valid();
           scheduler.next()) {
        if (scheduler.ends_tile()) finish<kActivation>(scheduler.work().tile);
      }
    });
  }

 private:
  template <Activation kActivation>
  __device__ __forceinline__ void finish(const Tile& tile) {
    first_row_ = tile.m * T::kTileM + thread_ / kUnits;
    column_ = tile.n * T::kTileN + thread_ % kUnits * 8;
    Rows next = load(0);
#pragma unroll 1
    for (int time = 0; time < kTimes; ++time) {
      Shared& half = shared_[time / kTimesEach];
      const int part = time % kTimesEach;
      if (part == 0) Barrier::wait(&half.full, phase_);
      const Rows rows = next;
      Unit gradients[kPasses];
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const int row = part * kRowsAtATime + pass * kRowsPerPass + thread_ / kUnits;
        const int unit = thread_ % kUnits;
        gradients[pass] = staged(half.panels[unit / 8], row, unit % 8);
      }
      if (part == kTimesEach - 1) Barrier::arrive(&half.free);
      if (time + 1 < kTimes) next = load(time + 1);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        Results results;
        resolve_rare<kActivation>(p_.epilogue.activation, [&]<Activation kNow>() {
          results = compute<kNow>(rows.gate[pass], rows.up[pass], gradients[pass]);
        });
        store(row_of(time, pass), results);
      }
    }
    phase_ ^= 1;
  }

  // gate and up are their gradients here.
  struct Results {
    Unit gate, up, hidden;
  };

  template <Activation kActivation>
  __device__ __forceinline__ static Results compute(const Unit& gate, const Unit& up,
                                                    const Unit& gradient) {
    Results r;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 g = unpack<Element>(gate.value[i]), u = unpack<Element>(up.value[i]);
      const float2 d = unpack<Element>(gradient.value[i]);
      const auto x = value_and_slope<kActivation, kGatedAccuracy<Element>>(g.x);
      const auto y = value_and_slope<kActivation, kGatedAccuracy<Element>>(g.y);
      r.gate.value[i] = pack<Element, false>(times_slope<kActivation>(d.x * u.x, x.slope),
                                             times_slope<kActivation>(d.y * u.y, y.slope));
      r.up.value[i] = pack<Element, false>(d.x * x.value, d.y * y.value);
      r.hidden.value[i] = pack<Element, false>(x.value * u.x, y.value * u.y);
    }
    return r;
  }

  // ---- memory ----

  __device__ static Unit staged(const uint8_t* panel, int row, int unit) {
    const uint8_t* at = panel + row * kBoxRowBytes + (unit ^ (row % 8)) * 16;
    return *reinterpret_cast<const Unit*>(at);
  }

  __device__ __forceinline__ Rows load(int time) const {
    Rows rows{};
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const uint32_t row = row_of(time, pass);
      if (!inside(row)) continue;
      rows.gate[pass] = load(unit_at(p_.gate, row, p_.gate_ld));
      rows.up[pass] = load(unit_at(p_.up, row, p_.gate_ld));
    }
    return rows;
  }

  __device__ __forceinline__ void store(uint32_t row, const Results& r) const {
    if (!inside(row)) return;
    store(unit_at(p_.gate, row, p_.gate_ld), r.gate);
    store(unit_at(p_.up, row, p_.gate_ld), r.up);
    if (p_.hidden != nullptr) store(unit_at(p_.hidden, row, p_.hidden_ld), r.hidden);
  }

  __device__ uint32_t row_of(int time, int pass) const {
    return first_row_ + time * kRowsAtATime + pass * kRowsPerPass;
  }
  __device__ bool inside(uint32_t row) const { return row < p_.rows && column_ < p_.columns; }
  __device__ Element* unit_at(void* data, uint32_t row, uint32_t ld) const {
    return static_cast<Element*>(data) + uint64_t{row} * ld + column_;
  }
  __device__ static Unit load(const Element* from) {
    const uint4 v = __ldcs(reinterpret_cast<const uint4*>(from));
    return {{v.x, v.y, v.z, v.w}};
  }
  // NOTE: nvcc cuts an assignment into four.
  __device__ static void store(Element* to, const Unit& u) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(u.value[0]),
                 "r"(u.value[1]), "r"(u.value[2]), "r"(u.value[3])
                 : "memory");
  }

  const GatedParams& p_;
  Shared (&shared_)[2];
  int thread_;
  uint32_t first_row_, column_;
  uint32_t phase_ = 0;
};

}  // namespace fusedops::sm90
