// The sm_90a GEMM kernel of 16-bit matrices: a producer warp copies operand tiles into a ring of
// stages by TMA, two consumer warpgroups multiply them (WGMMA) and store. Pingpong: each warpgroup
// has output tiles of its own and one multiplies while the other stores; cooperative: both share a
// tile. Tiles are walked by a persistent grid. CuTe supplies the MMA instructions and their operand
// layouts. Where the rest of a tile's work is much (sm90_gated_gradient.cuh), consumers hand it
// over to a fourth, the epilogue warpgroup.
//
// CUTLASS's own persistent kernels run the epilogues of the two pingpong warpgroups one after the
// other through shared staging buffers, which bounds products of small K; here each warpgroup
// stages for itself.
#pragma once

#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED  // WGMMAs of 160, 176 and 224 columns

#include <algorithm>

#include <cute/algorithm/gemm.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/gemm/collective/builders/sm90_common.inl>

#include "csrc/common/device/pdl.cuh"
#include "csrc/cutlass/kernels/sm90/sm90_dynamic_scheduler.cuh"
#include "csrc/cutlass/kernels/sm90/sm90_epilogue.cuh"
#include "csrc/cutlass/kernels/sm90/sm90_tile_exchange.cuh"
#include "csrc/cutlass/kernels/sm90/sm90_tile_scheduler.h"

namespace fusedops::sm90 {

// What an instance is compiled for. Element: of A, B, bias and all outputs but fp32 D.
template <class Element_, int kTileM_, int kTileN_, int kClusterM_, int kClusterN_,
          Schedule kSchedule_, Major kA_, Major kB_, Epilogue kEpilogue_>
struct KernelTraits {
  using Element = Element_;
  static constexpr int kTileM = kTileM_, kTileN = kTileN_;
  static constexpr int kTileK = kBoxRowBytes / int(sizeof(Element));
  static constexpr int kClusterM = kClusterM_, kClusterN = kClusterN_;
  static constexpr int kCtas = kClusterM * kClusterN;
  static constexpr bool kPingpong = kSchedule_ == Schedule::kPingpong;
  static constexpr Major kA = kA_, kB = kB_;
  static constexpr Epilogue kEpilogue = kEpilogue_;
  static constexpr int kWarpgroupM = kPingpong ? kTileM : kTileM / 2;
  static constexpr bool kPrefetchesOutput =
      (kEpilogue == Epilogue::kAccumulator || adds_halves(kEpilogue, kA, kB)) && !kPingpong;
  static constexpr bool kEpilogueWarpgroup = false;
  static constexpr bool kDynamic = false;

  static constexpr int kStageBytes = (kTileM + kTileN) * kBoxRowBytes;
  using Staging = EpilogueTraits<Element, kWarpgroupM, kTileN, kEpilogue>;
  static constexpr int kReserved = 2 * int(sizeof(typename Staging::Shared)) + 1024;
  static constexpr int kSharedLimit = 232448;  // bytes a block may have on sm_90
  static constexpr int kFit = (kSharedLimit - kReserved) / kStageBytes;
  static constexpr int kStages = kFit < 8 ? kFit : 8;
  static_assert(kStages >= 3 && kCtas <= 2);
};

// The kernel with a dynamic schedule: CTAs take tiles as they get to them.
template <class Traits>
struct DynamicTraits : Traits {
  static constexpr bool kDynamic = true;
};

// Producer, two consumers, perhaps an epilogue warpgroup: each has 128 threads.
template <class Traits>
inline constexpr int kThreads = Traits::kEpilogueWarpgroup ? 512 : 384;

struct KernelParams {
  CUtensorMap a, b;
  EpilogueParams epilogue;
  TileSchedule schedule;
  ExchangeSpace exchange;
};

// Shares out the last tiles where there is space for that; the number of clusters of CTAs to
// launch.
inline int grid_of(KernelParams& params, int slots) {
  TileSchedule& schedule = params.schedule;
  if (params.exchange.sums != nullptr) {
    add_stream_k_tail(schedule, slots);
  } else {
    schedule.dynamic =
        params.exchange.flags != nullptr && schedule.count > TileSchedule::kGiven * slots;
  }
  return schedule.whole < schedule.count ? slots : std::min(schedule.count, slots);
}

template <class Traits>
struct KernelShared {
  alignas(1024) uint8_t a[Traits::kStages][Traits::kTileM * kBoxRowBytes];
  alignas(1024) uint8_t b[Traits::kStages][Traits::kTileN * kBoxRowBytes];
  typename Traits::Staging::Shared epilogue[2];  // one per consumer warpgroup
  uint64_t full[Traits::kStages];
  uint64_t empty[Traits::kStages];
  cute::conditional_t<Traits::kDynamic, TileQueue, NoTileQueue> queue;
};

// A place in the ring of stages.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance(int steps) {
    stage += steps;
    phase ^= (stage / kStages) & 1;
    stage %= kStages;
  }
  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

template <class Traits>
struct Kernel {
  using T = Traits;
  using Shared = KernelShared<T>;
  using Place = RingPlace<T::kStages>;
  using Scheduler = cute::conditional_t<T::kDynamic, DynamicTileScheduler, TileScheduler>;
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Empty = cutlass::arch::ClusterBarrier;
  static constexpr int kSharedBytes = int(sizeof(Shared));

  // ---- producer ----

  // The tile of one operand. kPair: both CTAs of the cluster want the same tile, each loads a half
  // into both. K contiguous: halves are rows; otherwise boxes of 64 rows and halves of K.
  template <Major kMajor, int kRows, bool kPair>
  __device__ static void load_operand(const CUtensorMap& map, uint64_t* full, uint8_t* to, int row,
                                      int k, int rank) {
    if constexpr (kMajor == Major::kK) {
      const int skip = kPair ? rank * kRows / 2 : 0;
      load_box<kPair>(map, full, to + skip * kBoxRowBytes, k, row + skip);
    } else {
      constexpr int kBox = T::kTileK * kBoxRowBytes;
      const int skip = kPair ? rank * T::kTileK / 2 : 0;
#pragma unroll
      for (int i = 0; i < kRows * int(sizeof(typename T::Element)) / kBoxRowBytes; ++i) {
        load_box<kPair>(map, full, to + i * kBox + skip * kBoxRowBytes,
                        row + i * kBoxRowBytes / int(sizeof(typename T::Element)), k + skip);
      }
    }
  }

  __device__ static void load_stage(const KernelParams& p, Shared& shared, int stage,
                                    const Tile& tile, int step, int rank) {
    const int k = (tile.slice * p.schedule.k_steps + step) * T::kTileK;
    uint64_t* full = &shared.full[stage];
    load_operand<T::kA, T::kTileM, T::kClusterN == 2>(p.a, full, shared.a[stage],
                                                      tile.m * T::kTileM, k, rank);
    load_operand<T::kB, T::kTileN, T::kClusterM == 2>(p.b, full, shared.b[stage],
                                                      tile.n * T::kTileN, k, rank);
  }

  // What a tile is added to comes into L2 before its last steps: all CTAs want theirs at a time.
  __device__ static void prefetch_output(const KernelParams& p, const Tile& tile, int step) {
    using S = typename T::Staging;
    constexpr int kSteps = 8, kFromEnd = 10;
    constexpr int kDown = T::kTileM / S::kPanelRows, kPerStep = S::kPanels * kDown / kSteps;
    static_assert(S::kPanels * kDown % kSteps == 0);
    const int turn = step - (p.schedule.k_steps - kFromEnd);
    if (turn < 0 || turn >= kSteps) return;
#pragma unroll
    for (int i = 0; i < kPerStep; ++i) {
      const int panel = turn * kPerStep + i;
      cute::SM90_TMA_LOAD_3D::PREFETCH::copy(
          &p.epilogue.d, tile.n * T::kTileN + panel / kDown * S::kPanelColumns,
          tile.m * T::kTileM + panel % kDown * S::kPanelRows, tile.slice);
    }
  }

  // load(stage, tile, step) starts the copies of a stage whose place is free.
  template <class Load>
  __device__ static void produce(const KernelParams& p, Shared& shared, Load&& load) {
    Place place;
    Scheduler scheduler(p.schedule, shared.queue, T::kClusterM, T::kClusterN);
    for (; scheduler.valid(); scheduler.next()) {
      if constexpr (T::kDynamic) shared.queue.template begin<T::kCtas == 1>(scheduler.turn());
      const Work work = scheduler.work();
      for (int step = work.begin; step < work.end; ++step) {
        Empty::wait(&shared.empty[place.stage], place.phase ^ 1);
        Full::arrive_and_expect_tx(&shared.full[place.stage], T::kStageBytes);
        load(place.stage, work.tile, step);
        place.next();
      }
    }
  }

  // ---- consumers ----

  template <Major kMajor>
  static constexpr auto kGmmaMajor =
      kMajor == Major::kK ? cute::GMMA::Major::K : cute::GMMA::Major::MN;

  // (rows, kTileK, kStages) of an operand in shared memory, as TMA writes it.
  template <Major kMajor, int kRows>
  __device__ static auto operand_tensor(const uint8_t* data) {
    using namespace cute;
    using Atom = conditional_t<kMajor == Major::kK, GMMA::Layout_K_SW128_Atom<typename T::Element>,
                               GMMA::Layout_MN_SW128_Atom<typename T::Element>>;
    using Order = conditional_t<kMajor == Major::kK, Step<_1, _2, _3>, Step<_2, _1, _3>>;
    const auto layout =
        tile_to_shape(Atom{}, Shape<Int<kRows>, Int<T::kTileK>, Int<T::kStages>>{}, Order{});
    return make_tensor(make_smem_ptr(reinterpret_cast<const typename T::Element*>(data)), layout);
  }

  using Mma = decltype(cute::make_tiled_mma(
      cute::GMMA::ss_op_selector<typename T::Element, typename T::Element, float,
                                 cute::Shape<cute::_64, cute::Int<T::kTileN>, cute::Int<T::kTileK>>,
                                 kGmmaMajor<T::kA>, kGmmaMajor<T::kB>>()));

  __device__ static void release(Shared& shared, int stage) {
    const int thread = threadIdx.x % 128;
    if constexpr (T::kCtas == 1) {
      if (thread == 0) Empty::arrive(&shared.empty[stage]);
    } else {
      if (thread < T::kCtas) Empty::arrive(&shared.empty[stage], thread, true);
    }
  }

  // acc = A tile @ B tile over k_steps stages from `place` on. `issued` runs once the last MMA is
  // under way.
  template <class Accumulator, class Issued>
  __device__ static void multiply(Shared& shared, Accumulator& acc, int row, int k_steps,
                                  Place& place, Issued&& issued) {
    using namespace cute;
    Mma mma;
    const auto thread_mma = mma.get_slice(0);
    const auto tile_a = operand_tensor<T::kA, T::kTileM>(shared.a[0]);
    const auto rows_a = local_tile(tile_a, Shape<Int<T::kWarpgroupM>, Int<T::kTileK>>{},
                                   make_coord(row / T::kWarpgroupM, 0, _));
    const auto tile_b = operand_tensor<T::kB, T::kTileN>(shared.b[0]);
    const auto a = thread_mma.make_fragment_A(thread_mma.partition_A(rows_a));
    const auto b = thread_mma.make_fragment_B(thread_mma.partition_B(tile_b));
    mma.accumulate_ = GMMA::ScaleOut::Zero;
    int previous = 0;
    __builtin_assume(k_steps > 0);  // else nvcc clears the accumulators first
    for (int step = 0; step < k_steps; ++step) {
      Full::wait(&shared.full[place.stage], place.phase);
      warpgroup_fence_operand(acc);
      warpgroup_arrive();
#pragma unroll
      for (int i = 0; i < size<2>(a); ++i) {
        cute::gemm(mma, a(_, _, i, place.stage), b(_, _, i, place.stage), acc);
        mma.accumulate_ = GMMA::ScaleOut::One;
      }
      warpgroup_commit_batch();
      if (step > 0) {
        warpgroup_wait<1>();
        release(shared, previous);
      }
      warpgroup_fence_operand(acc);
      previous = place.stage;
      place.next();
    }
    issued();
    warpgroup_wait<0>();
    warpgroup_fence_operand(acc);
    release(shared, previous);
  }

  // Pingpong warpgroups take turns at the tensor cores.
  __device__ static void wait_turn(int warpgroup) {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + warpgroup) : "memory");
  }
  __device__ static void give_turn(int warpgroup) {
    asm volatile("bar.arrive %0, 256;" ::"r"(2 - warpgroup) : "memory");
  }

  // Steps over the other warpgroup's turn.
  __device__ static void skip(Scheduler& scheduler, Place& place) {
    if (!scheduler.valid()) return;
    place.advance(scheduler.steps());
    scheduler.next();
  }

  __device__ static void consume(const KernelParams& p, Shared& shared, int warpgroup) {
    using namespace cute;
    Place place;
    TileEpilogue<T> epilogue(p.epilogue, shared.epilogue[warpgroup], warpgroup);
    Scheduler scheduler(p.schedule, shared.queue, T::kClusterM, T::kClusterN);
    const int sharer = T::kPingpong ? 0 : warpgroup, row = sharer * T::kWarpgroupM;
    const int rank = blockIdx.x % T::kCtas;
    const TileExchange<T::kWarpgroupM * T::kTileN / 128, T::kPingpong ? 1 : 2> exchange(
        p.exchange, sharer, 8 + warpgroup);
    if (T::kPingpong && warpgroup == 1) {
      give_turn(1);
      skip(scheduler, place);
    }
    Work next = scheduler.work();
    epilogue.prefetch(next.tile);
    while (scheduler.valid()) {
      const Work work = next;
      const bool ends_tile = scheduler.ends_tile();
      if (ends_tile) epilogue.prepare(work.tile, row);
      auto acc = partition_fragment_C(Mma{}, Shape<Int<T::kWarpgroupM>, Int<T::kTileN>>{});
      if constexpr (T::kPingpong) wait_turn(warpgroup);
      const auto issued = [&] {
        if (T::kPingpong && !scheduler.last()) give_turn(warpgroup);
        scheduler.next();
        if constexpr (T::kPingpong) skip(scheduler, place);
        next = scheduler.work();
        epilogue.prefetch(next.tile);
      };
      multiply(shared, acc, row, work.end - work.begin, place, issued);
      if (!ends_tile) {
        exchange.send(acc.data(), work.part * T::kCtas + rank);
        continue;
      }
      const int helpers = work.begin > 0 ? p.schedule.parts : 0;
      for (int i = 0; i < helpers; ++i) {
        exchange.add(acc.data(), (work.part + i) * T::kCtas + rank);
      }
      epilogue.run(acc.data(), work.tile, row);
    }
    epilogue.finish();
  }

  // ---- the kernel ----

  __device__ static void run(const KernelParams& p, uint8_t* raw) {
    const auto load = [&](Shared& shared, int rank) {
      if constexpr (T::kDynamic) {
        if (threadIdx.x == 32 && rank == 0) {
          take_tiles<T::kCtas>(p.schedule, p.exchange, shared.queue);
        }
      }
      if (threadIdx.x != 0) return;
      produce(p, shared, [&](int stage, const Tile& tile, int step) {
        load_stage(p, shared, stage, tile, step, rank);
        if constexpr (T::kPrefetchesOutput) {
          if (p.epilogue.accumulate) prefetch_output(p, tile, step);
        }
      });
    };
    run_roles(p, raw, load, [](Shared&) {});
  }

  // produce(shared, rank in the cluster): what the producer warpgroup does; finish(shared): the
  // finisher, where there is one. The registers of an SM are shared out among the warpgroups.
  template <class Produce, class Finish>
  __device__ static void run_roles(const KernelParams& p, uint8_t* raw, Produce&& produce,
                                   Finish&& finish) {
    Shared& shared = *reinterpret_cast<Shared*>(raw);
    const int rank = T::kCtas == 1 ? 0 : int(cute::block_rank_in_cluster());
    const int warpgroup = cutlass::canonical_warp_group_idx();
    if (threadIdx.x == 0) {
      constexpr int kReaders = (T::kPingpong ? 1 : 2) * T::kCtas;
      for (int i = 0; i < T::kStages; ++i) {
        Full::init(&shared.full[i], 1);
        Empty::init(&shared.empty[i], kReaders);
      }
      for (auto& epilogue : shared.epilogue) TileEpilogue<T>::init(epilogue);
      if constexpr (T::kDynamic) shared.queue.init();
      cutlass::arch::fence_barrier_init();
    }
    if constexpr (T::kCtas == 1) {
      __syncthreads();
    } else {
      cute::cluster_arrive_relaxed();
      cute::cluster_wait();
    }
    wait_for_predecessor();
    if (warpgroup == 0) {
      cutlass::arch::warpgroup_reg_dealloc<24>();
      produce(shared, rank);
    } else if (!T::kEpilogueWarpgroup || warpgroup < 3) {
      cutlass::arch::warpgroup_reg_alloc<T::kEpilogueWarpgroup ? 168 : 240>();
      consume(p, shared, warpgroup - 1);
    } else {
      cutlass::arch::warpgroup_reg_alloc<152>();
      finish(shared);
    }
    // A CTA stays until its partner has no more copies and arrivals for it.
    if constexpr (T::kCtas > 1) {
      cute::cluster_arrive();
      cute::cluster_wait();
    }
  }
};

template <class Traits>
__global__ void __launch_bounds__(kThreads<Traits>, 1)
    gemm_kernel(const __grid_constant__ KernelParams params) {
  extern __shared__ __align__(1024) uint8_t raw[];
  Kernel<Traits>::run(params, raw);
}

}  // namespace fusedops::sm90
