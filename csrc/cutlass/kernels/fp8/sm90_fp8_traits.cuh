// What the FP8 kernels (sm90_fp8_kernel.cuh) are compiled for, what they are launched with, and
// their shared memory.
#pragma once

#include <cute/algorithm/tuple_algorithms.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cutlass/float8.h>

#include "csrc/cutlass/kernels/fp8/sm90_fp8.h"
#include "csrc/cutlass/kernels/sm90/sm90_epilogue.cuh"
#include "csrc/cutlass/kernels/sm90/sm90_tile_scheduler.h"

namespace fusedops::fp8 {

using sm90::kBoxRowBytes;
using sm90::Tile;

struct Params {
  CUtensorMap a, b;
  sm90::EpilogueParams epilogue;
  sm90::TileSchedule schedule;
  Scales scale_a, scale_b;
  bool a_by_tile = false;  // kRowRow: scale_a has one value for 128 rows
};

// The output tile of a warpgroup is kRows by 128, in waves of 64 rows through one set of
// accumulators, added to fp32 registers every 128 of K. kSharers warpgroups with rows below each
// other share a ring of stages, and B; there are kRings such teams, each with tiles of its own.
// kCtas blocks of a cluster, below each other, share what they load of B.
template <class A_, class B_, class Out_, Scaling kScaling_, int kRows_, int kSharers_, int kRings_,
          int kCtas_, int kStoreRing_ = 2, bool kTurns_ = false>
struct Traits {
  using A = A_;
  using B = B_;
  using Out = Out_;
  static constexpr Scaling kScaling = kScaling_;
  static constexpr int kRows = kRows_, kSharers = kSharers_, kRings = kRings_, kCtas = kCtas_;
  static constexpr bool kTurns = kTurns_;  // two sharers multiply wave by wave in turn
  static constexpr int kWaves = kRows / 64, kColumns = 128;
  static constexpr int kConsumers = kSharers * kRings, kThreads = 128 * (kConsumers + 1);
  static constexpr int kTileM = kRows * kSharers, kTileN = kColumns;
  static_assert(!kTurns || (kSharers == 2 && kRings == 1));
  static_assert(kRows % 64 == 0 && kCtas <= 2 && kConsumers <= 3);

  // ---- what TileEpilogue asks for ----
  static constexpr bool kFp32 = cute::is_same_v<Out, float>;
  using Element = cute::conditional_t<kFp32, cutlass::bfloat16_t, Out>;
  static constexpr Epilogue kEpilogue = kFp32 ? Epilogue::kAccumulator : Epilogue::kFused;
  static constexpr Major kA = Major::kK, kB = Major::kK;
  struct Staging : sm90::EpilogueTraits<Element, kRows, kColumns, kEpilogue> {
    using Base = sm90::EpilogueTraits<Element, kRows, kColumns, kEpilogue>;
    static constexpr int kRing = kStoreRing_;
    struct Shared {
      alignas(1024) uint8_t staging[kRing][Base::kPanelBytes];
      alignas(16) Element bias[kColumns];
      float sums[1][1];
      uint64_t aux_full;
    };
  };

  // ---- the way in of B's rows, and the way out ----
  using Params = fp8::Params;
  using Store = sm90::TileEpilogue<Traits>;
  __device__ static Store make_store(const Params& p, typename Staging::Shared& shared,
                                     int consumer) {
    return Store(p.epilogue, shared, consumer);
  }
  // kCtas blocks each load a part of B's tile into all of them.
  __device__ static void load_b(const Params& p, uint64_t* full, uint8_t* to, int k, int row,
                                int rank) {
    const int skip = rank * kTileN / kCtas;
    sm90::load_box<(kCtas > 1)>(p.b, full, to + skip * kBoxRowBytes, k, row + skip);
  }

  // ---- shared memory ----
  static constexpr int kStageBytes = (kTileM + kTileN) * kBoxRowBytes;
  static constexpr int kScalesA = kScaling == Scaling::kResult ? 0 : kTileM;
  static constexpr int kScalesB = kScaling == Scaling::kRowRow ? kTileN : 0;
  static constexpr int kSharedLimit = 232448;  // bytes a block may have on sm_90
  static constexpr int kReserved = kConsumers * int(sizeof(typename Staging::Shared)) + 1024;
  static constexpr int kFit =
      (kSharedLimit - kReserved) / (kRings * (kStageBytes + 4 * (kScalesA + kScalesB)));
  static constexpr int kStages = kFit < 8 ? kFit : 8;
  static_assert(kStages >= 3);

  // Registers of a thread. NOTE: warpgroups share out what a block was launched with, 168 for each
  // of 384 threads or 128 for each of 512, and wait forever for more.
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 24;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 240;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (kConsumers == 3 ? 128 * 4 : 168 * 3));
};

template <class T>
struct alignas(16) StageScales {
  float a[T::kScalesA > 0 ? T::kScalesA : 4], b[T::kScalesB > 0 ? T::kScalesB : 4];
};

template <class T>
struct KernelShared {
  alignas(1024) uint8_t stages[T::kRings][T::kStages][T::kStageBytes];  // A's rows, then B's
  typename T::Staging::Shared epilogue[T::kConsumers];
  StageScales<T> scales[T::kRings][T::kStages];
  uint64_t full[T::kRings][T::kStages], empty[T::kRings][T::kStages];
};

// d (64, 128) += a (64, 32) @ b (128, 32)^T.
template <class A, class B>
using Atom = cute::conditional_t<cute::is_same_v<A, cutlass::float_e4m3_t>,
                                 cute::SM90::GMMA::MMA_64x128x32_F32E4M3E4M3_SS_TN<>,
                                 cute::SM90::GMMA::MMA_64x128x32_F32E5M2E4M3_SS_TN<>>;

}  // namespace fusedops::fp8
