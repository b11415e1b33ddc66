// The epilogue of the sm_90a kernels, what they do with a tile of accumulators: bias, activation or
// its gradient, and the way out through shared memory and TMA.
//
// The accumulators of a warpgroup are rows of 64 by 8 columns: thread t of warp w holds, of rows
// 16 w + t / 4 and 8 further on, the columns 2 (t % 4) and one further on. They leave in panels
// (CUTLASS's epilogue tiles) of 128 bytes by 64 or all rows. A warpgroup stages panels in memory of
// its own and waits only for its own earlier stores. While the other warpgroup multiplies, tensor
// cores and the epilogue share the bandwidth of registers and shared memory: what counts is the
// number of instructions.
#pragma once

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm90.hpp>
#include <cutlass/arch/barrier.h>

#include "csrc/common/device/value_and_slope.cuh"
#include "csrc/cutlass/configs/sm90_configs.h"
#include "csrc/cutlass/kernels/hopper/rolled.cuh"
#include "csrc/cutlass/kernels/sm90/sm90_column_sums.cuh"
#include "csrc/cutlass/kernels/sm90/sm90_epilogue_traits.cuh"
#include "csrc/cutlass/kernels/sm90/sm90_gradient_unit.cuh"
#include "csrc/cutlass/kernels/sm90/sm90_staging.cuh"
#include "csrc/cutlass/kernels/sm90/sm90_tile_scheduler.h"

namespace fusedops::sm90 {

template <class T>
class TileEpilogue {
  using Element = typename T::Element;
  using S = typename T::Staging;
  using Shared = typename S::Shared;
  using Out = typename S::Out;
  using AuxFull = cutlass::arch::ClusterTransactionBarrier;
  static constexpr int kRowBlocks = S::kRows / 64;
  static constexpr int kPerRowBlock = S::kColumns / 2;  // accumulators
  static constexpr int kNormsOfThread = (S::kColumns + 127) / 128;
  static constexpr bool kHasBias =
      T::kEpilogue != Epilogue::kAccumulator && S::kSums == 0 && !S::kNorm;
  // Where an activation adds the bias first; a pre-activation has it already.
  static constexpr bool kAddsBias = kHasBias && T::kEpilogue != Epilogue::kPreact;
  static constexpr bool kAdds = sizeof(Out) == 4 || adds_halves(T::kEpilogue, T::kA, T::kB);
  static_assert(!kAdds || S::kWhole);  // no column is added twice
  static constexpr Accuracy kAccuracy =
      cute::is_same_v<Element, cutlass::bfloat16_t> ? Accuracy::kBFloat16 : kAccuracyOf<Element>;

 public:
  // One thread calls this before the barrier that all threads wait for.
  __device__ static void init(Shared& shared) { AuxFull::init(&shared.aux_full, 1); }

  __device__ TileEpilogue(const EpilogueParams& params, Shared& shared, int warpgroup)
      : p_(params), shared_(shared), warpgroup_(warpgroup), thread_(threadIdx.x % 128) {}

  // Comes before the epilogue of a tile, whose bias goes to shared memory; the next one's is on its
  // way from now on (a mainloop of small K is shorter than the latency of a load).
  __device__ void prefetch(const Tile& next) {
    if constexpr (kHasBias) exchange_bias(next);
    if constexpr (S::kNorm) exchange_norm(next);
  }

  // Comes before the mainloop of a tile: what its epilogue needs is on the way meanwhile.
  __device__ void prepare(const Tile& tile, int row) {
    if constexpr (S::kReadsAux) {
      if (thread_ == 0 && p_.load_aux) load_aux(tile, row);
    }
  }

  __device__ void run(float* acc, const Tile& tile, int row) {
    if constexpr (T::kEpilogue == Epilogue::kFused) {
      if (p_.bias == nullptr && p_.activation == Activation::kNone) {  // a product alone
        return for_each_panel([&](auto panel) { store_panel<false>(acc, panel, p_.d, tile, row); });
      }
    }
    if constexpr (kHasBias || S::kNorm) barrier();
    if constexpr (S::kReadsAux) {
      if (p_.load_aux) {
        AuxFull::wait(&shared_.aux_full, aux_phase_);
        aux_phase_ ^= 1;
      }
    }
    if constexpr (T::kEpilogue == Epilogue::kGrad) {
      multiply_gradient(acc, tile, row);
      if (p_.column_sums != nullptr) sum_columns(acc, tile, row);
    }
    if constexpr (T::kEpilogue == Epilogue::kMoments) form_moments(acc, tile, row);
    if constexpr (S::kNorm) return normalise(acc, tile, row);
    if constexpr (T::kEpilogue == Epilogue::kPreact) {
      for_each_panel([&](auto panel) {
        add_bias(acc, panel);
        store_panel<false>(acc, panel, p_.aux, tile, row);
      });
    }
    if constexpr (kHasBias) {
      with_activation(p_.activation, [&]<Activation kActivation>() {
        if constexpr (kActivation == kAnyRare) activate_units(acc);
        for_each_panel([&](auto panel) { finish_panel<kActivation>(acc, panel, tile, row); });
      });
    } else {
      for_each_panel([&](auto panel) { store_panel<false>(acc, panel, p_.d, tile, row); });
    }
  }

  // Staging memory must outlive the copies out of it.
  __device__ void finish() {
    if (thread_ == 0) cute::tma_store_wait<0>();
  }

 private:
  __device__ void barrier() const {
    asm volatile("bar.sync %0, 128;" ::"r"(8 + warpgroup_) : "memory");
  }

  template <class Fn>
  __device__ __forceinline__ void for_each_panel(Fn&& fn) {
    cute::for_each(cute::make_int_sequence<S::kPanels>{}, fn);
  }

  // The four accumulators of row block m and columns 8 j.. of a panel.
  __device__ static float* values_of(float* acc, int panel, int m, int j) {
    return acc + m * kPerRowBlock + (S::first_column(panel) / 8 + j) * 4;
  }

  // ---- long work ----

  static constexpr int kBlockValues = 32;  // of this thread in a row block of a panel

  // fn(values, panel, row block) over panels [kFirst, kLast), for work of many instructions (kGrad
  // with 30 an element and K = 384 took 1.3 times as long unrolled).
  template <int kFirst, int kLast, class Fn>
  __device__ __forceinline__ void for_each_block(float* acc, Fn&& fn) {
    static_assert(S::kPanelColumns * 4 / 8 == kBlockValues);
    for_each_rolled<kFirst * kRowBlocks, kLast * kRowBlocks, kBlockValues>(
        [&]<int kBlock>(cute::Int<kBlock>) {
          return values_of(acc, kBlock / kRowBlocks, kBlock % kRowBlocks, 0);
        },
        [&](float* v, int i) { fn(v, i / kRowBlocks, i % kRowBlocks); });
  }

  // fn(values, row block, first column) over 16 columns at a time, whatever the panels: for work of
  // many instructions and many kinds.
  template <class Fn>
  __device__ __forceinline__ void for_each_unit(float* acc, Fn&& fn) {
    constexpr int kAcross = S::kColumns / 16;
    for_each_rolled<0, kRowBlocks * kAcross, 8>(
        [&]<int kUnit>(cute::Int<kUnit>) { return acc + kUnit * 8; },
        [&](float* v, int i) { fn(v, i / kAcross, i % kAcross * 16); });
  }

  // ---- bias and activation ----

  // A missing bias is a row of zeros. NOTE: behind the last tile, next may be any numbers.
  __device__ void exchange_bias(const Tile& next) {
    constexpr int kPer = 16 / int(sizeof(Element));
    if (thread_ >= S::kColumns / kPer) return;
    reinterpret_cast<uint4*>(shared_.bias)[thread_] = next_bias_;
    const unsigned column = next.n * S::kColumns + thread_ * kPer;
    const bool inside = p_.bias != nullptr && column < unsigned(p_.columns);
    const auto* bias = static_cast<const Element*>(p_.bias) + column;
    next_bias_ = inside ? __ldg(reinterpret_cast<const uint4*>(bias)) : uint4{};
  }

  // The bias of the two columns that this thread has of eight.
  __device__ float2 bias_of(int panel, int j) const {
    return bias_of(S::first_column(panel) + j * 8);
  }
  __device__ float2 bias_of(int column) const {
    const Element* at = &shared_.bias[column + thread_ % 4 * 2];
    return unpack<Element>(*reinterpret_cast<const uint32_t*>(at));
  }

  // fn(accumulator, bias of its column) over what is new in a panel.
  template <class Fn>
  __device__ __forceinline__ void with_bias(float* acc, int panel, Fn&& fn) const {
#pragma unroll
    for (int j = S::repeated(panel) / 8; j < S::kPanelColumns / 8; ++j) {
      const float2 bias = bias_of(panel, j);
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        float* v = values_of(acc, panel, m, j);
#pragma unroll
        for (int i = 0; i < 4; ++i) fn(v[i], i % 2 ? bias.y : bias.x);
      }
    }
  }

  __device__ void add_bias(float* acc, int panel) const {
    with_bias(acc, panel, [](float& value, float bias) { value += bias; });
  }

  // Bias and a rare activation.
  __device__ __forceinline__ void activate_units(float* acc) {
    for_each_unit(acc, [&](float* v, int, int column) {
      float2 bias[2] = {};
      if constexpr (kAddsBias) bias[0] = bias_of(column), bias[1] = bias_of(column + 8);
      resolve_rare<kAnyRare>(p_.activation, [&]<Activation kNow>() {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          v[e] = activate_as<kNow, kAccuracy>(v[e] + (e % 2 ? bias[e / 4].y : bias[e / 4].x));
        }
      });
    });
  }

  // kAnyRare: after activate_units.
  template <Activation kActivation, class Panel>
  __device__ __forceinline__ void finish_panel(float* acc, Panel panel, const Tile& tile, int row) {
    // ReLU of 16-bit results comes free with their rounding.
    constexpr bool kPacked = kActivation == Activation::kRelu && !S::kReadsAux;
    constexpr Activation kNow = kPacked ? Activation::kNone : kActivation;
    if constexpr (kNow == kAnyRare) {
    } else if constexpr (kNow == Activation::kGelu && S::repeated(panel) == 0) {
      finish_blocks<kNow>(acc, panel);
    } else if constexpr (T::kEpilogue == Epilogue::kPreact) {
      with_bias(acc, panel,
                [](float& value, float) { value = activate_as<kNow, kAccuracy>(value); });
    } else if constexpr (kFromHalf<kNow, kAccuracy>) {
      with_bias(acc, panel, [](float& value, float bias) {
        value = activate_half<kNow>(fmaf(value, 0.5f, 0.5f * bias));
      });
    } else {
      with_bias(acc, panel, [](float& value, float bias) {
        value = activate_as<kNow, kAccuracy>(value + bias);
      });
    }
    if constexpr (T::kEpilogue == Epilogue::kResidual) {
      with_aux(acc, panel, [](float& value, float residual) { value += residual; });
    }
    store_panel<kPacked>(acc, panel, p_.d, tile, row);
  }

  template <Activation kActivation, int kPanel>
  __device__ __forceinline__ void finish_blocks(float* acc, cute::Int<kPanel>) {
    for_each_block<kPanel, kPanel + 1>(acc, [&](float* v, int, int) {
#pragma unroll
      for (int e = 0; e < kBlockValues; ++e) {
        const float2 bias = kAddsBias ? bias_of(kPanel, e / 4) : float2{};
        v[e] = activate_as<kActivation, kAccuracy>(v[e] + (e % 2 ? bias.y : bias.x));
      }
    });
  }

  // ---- norm ----

  // Scales and shifts of the columns of a tile, as exchange_bias.
  __device__ void exchange_norm(const Tile& next) {
#pragma unroll
    for (int i = 0; i < kNormsOfThread; ++i) {
      const int c = thread_ + i * 128, column = next.n * S::kColumns + c;
      if (c >= S::kColumns) return;
      shared_.norm[c] = next_norm_[i];
      if (unsigned(column) >= unsigned(p_.columns)) continue;
      next_norm_[i] = norm_of_column<Element>(p_.norm, column).scale_and_shift();
    }
  }

  __device__ void normalise(float* acc, const Tile& tile, int row) {
    for_each_panel([&](auto panel) {
#pragma unroll
      for (int j = 0; j < S::kPanelColumns / 8; ++j) {
        const int column = S::first_column(panel) + j * 8 + thread_ % 4 * 2;
        const float4 norms = *reinterpret_cast<const float4*>(&shared_.norm[column]);
#pragma unroll
        for (int m = 0; m < kRowBlocks; ++m) {
          float* v = values_of(acc, panel, m, j);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            v[i] = i % 2 ? v[i] * norms.z + norms.w : v[i] * norms.x + norms.y;
          }
        }
      }
      if (p_.load_aux) with_aux(acc, panel, [](float& value, float added) { value += added; });
    });
    with_activation(p_.activation, [&]<Activation kActivation>() {
      constexpr bool kPacked = kActivation == Activation::kRelu;
      if constexpr (kActivation == kAnyRare) activate_units(acc);
      for_each_panel([&](auto panel) {
        constexpr bool kNone = kActivation == Activation::kNone || kActivation == kAnyRare;
        if constexpr (!kPacked && !kNone) finish_blocks<kActivation>(acc, panel);
        store_panel<kPacked>(acc, panel, p_.d, tile, row);
      });
    });
  }

  // ---- the auxiliary input ----

  // One thread copies the auxiliary tile into the staging memory, where results will replace it.
  __device__ void load_aux(const Tile& tile, int row) {
    cute::tma_store_wait<0>();
    AuxFull::arrive_and_expect_tx(&shared_.aux_full, S::kPanels * S::kPanelBytes);
#pragma unroll 1
    for (int panel = 0; panel < S::kPanels; ++panel) {
      constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
      cute::SM90_TMA_LOAD_3D::copy(&p_.aux, &shared_.aux_full, kHint, shared_.staging[panel],
                                   tile.n * S::kColumns + panel * S::kPanelColumns,
                                   tile.m * T::kTileM + row, 0);
    }
  }

  // fn(accumulator, auxiliary value) over a panel.
  template <class Fn>
  __device__ __forceinline__ void with_aux(float* acc, int panel, Fn&& fn) const {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        uint32_t r[4];
        const uint8_t* from = matrix_unit(shared_.staging[panel], m, j);
        cute::SM75_U32x4_LDSM_N::copy(*reinterpret_cast<const cute::uint128_t*>(from), r[0], r[1],
                                      r[2], r[3]);
        float* v = values_of(acc, panel, m, j);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = unpack<Element>(r[i]);
          fn(v[i * 2], pair.x);
          fn(v[i * 2 + 1], pair.y);
        }
      }
    }
  }

  // acc = acc * act'(saved); act(saved) replaces what was saved in the staging memory and leaves.
  __device__ void multiply_gradient(float* acc, const Tile& tile, int row) {
    if (!p_.load_aux) return;
    with_activation(p_.activation, [&]<Activation kActivation>() {
      if constexpr (saved_for_backward(kActivation) == Saved::kPreact) {
        if (p_.store_hidden) return gradient<kActivation, true>(acc, tile, row);
      }
      gradient<kActivation, false>(acc, tile, row);
    });
  }

  template <Activation kActivation, bool kHidden>
  __device__ __forceinline__ void gradient(float* acc, const Tile& tile, int row) {
    if constexpr (kActivation == kAnyRare) {
      for_each_unit(acc, [&](float* v, int m, int column) {
        uint8_t* saved = matrix_unit(shared_.staging[column / 64], m, column % 64 / 8);
        resolve_rare<kActivation>(p_.activation, [&]<Activation kNow>() {
          constexpr bool kBoth = kHidden && saved_for_backward(kNow) == Saved::kPreact;
          gradient_unit<Element, kAccuracy, kNow, kBoth>(v, saved);
        });
      });
#pragma unroll 1
      for (int panel = 0; kHidden && panel < S::kPanels; ++panel) {
        publish(p_.hidden, panel, 0, tile, row);
      }
    } else if constexpr (saved_for_backward(kActivation) == Saved::kPreact) {
      for_each_block<0, S::kPanels>(acc, [&](float* v, int panel, int m) {
        gradient_block<kActivation, kHidden>(v, panel, m);
        if (kHidden && m == kRowBlocks - 1) publish(p_.hidden, panel, 0, tile, row);
      });
    } else {
      for_each_panel([&](auto panel) {
#pragma unroll
        for (int m = 0; m < kRowBlocks; ++m) {
          gradient_block<kActivation, kHidden>(values_of(acc, panel, m, 0), panel, m);
        }
      });
    }
  }

  template <Activation kActivation, bool kHidden>
  __device__ __forceinline__ void gradient_block(float* v, int panel, int m) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      gradient_unit<Element, kAccuracy, kActivation, kHidden>(
          v + j * 4, matrix_unit(shared_.staging[panel], m, j));
    }
  }

  // ---- sums of columns ----

  // fn(row of the warpgroups above each other, column in the tile, column) for this thread's
  // columns where all warps have left sums.
  template <class Fn>
  __device__ __forceinline__ void for_summed_columns(const Tile& tile, int first_row, Fn&& fn) {
    barrier();
    if (first_row >= p_.rows) return;
    for (int i = thread_; i < S::kColumns; i += 128) {
      const int column = tile.n * S::kColumns + i;
      if (column < p_.columns) fn(int64_t{first_row / S::kRows} * p_.columns + column, i);
    }
  }

  __device__ void sum_columns(float* acc, const Tile& tile, int row) {
    const int first_row = tile.m * T::kTileM + row;
    if (p_.rows - first_row < S::kRows) {
      clear_rows<kRowBlocks, kPerRowBlock>(acc, p_.rows - first_row);
    }
    column_sums<kRowBlocks, S::kColumns>(acc, thread_, shared_.sums);
    for_summed_columns(tile, first_row, [&](int64_t to, int i) {
      p_.column_sums[to] =
          (shared_.sums[0][i] + shared_.sums[1][i]) + (shared_.sums[2][i] + shared_.sums[3][i]);
    });
  }

  // The moments of what leaves: of 16-bit values.
  __device__ void form_moments(float* acc, const Tile& tile, int row) {
    const int first_row = tile.m * T::kTileM + row, rows = p_.rows - first_row;
    if (rows < S::kRows) clear_rows<kRowBlocks, kPerRowBlock>(acc, rows);
#pragma unroll
    for (int i = 0; i < kRowBlocks * kPerRowBlock; i += 2) {
      const float2 pair = unpack<Element>(pack<Element, false>(acc[i], acc[i + 1]));
      acc[i] = pair.x, acc[i + 1] = pair.y;
    }
    column_moments<kRowBlocks, S::kColumns>(acc, thread_, rows, shared_.sums);
    for_summed_columns(tile, first_row, [&](int64_t to, int i) {
      reinterpret_cast<float2*>(p_.column_sums)[to] =
          joined_moments<kRowBlocks>(shared_.sums, i, rows);
    });
  }

  // ---- the way out ----

  template <class Byte>
  __device__ Byte* matrix_unit(Byte* panel, int row_block, int j) const {
    return place_of_row(panel, thread_, row_block, j);
  }

  template <bool kRelu>
  __device__ __forceinline__ void store_panel(float* acc, int panel, const CUtensorMap& map,
                                              const Tile& tile, int row) {
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
      // Over an auxiliary tile each warp writes where it alone has read.
      if (!S::kReadsAux || !p_.load_aux || p_.store_hidden) {
        if (thread_ == 0) wait_for_staging(panel * S::kParts + part);
        barrier();
      }
      if constexpr (sizeof(Out) == 4) {
        stage_fp32(staging(panel, part), thread_,
                   [&](int j) { return values_of(acc, panel, part, j); });
      } else {
        stage<kRelu>(acc, panel, part);
      }
      publish(map, panel, part, tile, row);
    }
  }

  __device__ __forceinline__ uint8_t* staging(int panel, int part) const {
    return shared_.staging[(panel * S::kParts + part) % S::kRing];
  }

  // One thread waits. Of an odd number of parts in two places the first one follows the last one.
  __device__ __forceinline__ void wait_for_staging(int part) const {
    if (S::kPanels * S::kParts % S::kRing != 0 && part == 0) {
      cute::tma_store_wait<0>();
    } else {
      cute::tma_store_wait<S::kRing - 1>();
    }
  }

  // What has been staged leaves.
  __device__ __forceinline__ void publish(const CUtensorMap& map, int panel, int part,
                                          const Tile& tile, int row) {
    cute::tma_store_fence();
    barrier();
    if (thread_ == 0) {
      copy_out(map, staging(panel, part), tile.n * S::kColumns + S::first_column(panel),
               tile.m * T::kTileM + row + part * S::kPanelRows, tile.slice);
      cute::tma_store_arrive();
    }
  }

  __device__ void copy_out(const CUtensorMap& map, const uint8_t* from, int column, int row,
                           int slice) const {
    if (kAdds && p_.accumulate) {
      cute::SM90_TMA_REDUCE_ADD_3D::copy(&map, from, column, row, slice);
    } else {
      cute::SM90_TMA_STORE_3D::copy(&map, from, column, row, slice);
    }
  }

  // Stages 16-bit values with the swizzle that TMA expects.
  template <bool kRelu>
  __device__ __forceinline__ void stage(float* acc, int panel, int part) const {
    constexpr int kBlocks = S::kPanelRows / 64;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        const float* v = values_of(acc, panel, part * kBlocks + m, j);
        cute::SM90_U32x4_STSM_N::copy(
            pack<Out, kRelu>(v[0], v[1]), pack<Out, kRelu>(v[2], v[3]),
            pack<Out, kRelu>(v[4], v[5]), pack<Out, kRelu>(v[6], v[7]),
            *reinterpret_cast<cute::uint128_t*>(matrix_unit(staging(panel, part), m, j)));
      }
    }
  }

  const EpilogueParams& p_;
  Shared& shared_;
  int warpgroup_, thread_;
  uint4 next_bias_{};  // 16 bytes
  float2 next_norm_[S::kNorm ? kNormsOfThread : 1] = {};
  uint32_t aux_phase_ = 0;
};

}  // namespace fusedops::sm90
