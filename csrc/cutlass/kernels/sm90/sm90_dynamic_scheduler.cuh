// The dynamic scheduler: output tiles for whichever cluster of CTAs gets to them first.
//
// SMs share the way to L2 with those of their GPC, and GPCs have different numbers of SMs: where
// products are bound by memory, some SMs are a fifth faster than others. With as many tiles for all
// of them, the last SM finishes 7 to 12 % after the average one (H200).
//
// Each cluster has its first tiles by its number; from there on a thread of its first
// CTA takes numbers from a counter in global memory, a few tiles ahead.
#pragma once

#include <cutlass/arch/barrier.h>

#include "csrc/cutlass/kernels/sm90/sm90_tile_scheduler.h"
#include "csrc/cutlass/problem.h"

namespace fusedops::sm90 {

// Tells all producers and consumers of a CTA which tiles it takes. NOTE: places need not be
// released. Numbers are taken as the producer begins tiles, and it is ahead of consumers by at most
// the stages (8).
struct TileQueue {
  static constexpr int kPlaces = 32;
  using Barrier = cutlass::arch::ClusterTransactionBarrier;

  int tile[kPlaces];
  uint64_t full[kPlaces];
  uint64_t begun[kPlaces];

  // One thread calls this before the barrier that all threads wait for.
  __device__ void init() {
    for (int i = 0; i < kPlaces; ++i) {
      Barrier::init(&full[i], 1);
      Barrier::init(&begun[i], 1);
    }
  }

  // The producer says that the CTA begins its tile of this turn.
  template <bool kAlone>
  __device__ __forceinline__ void begin(int turn) {
    const int place = turn % kPlaces;
    if (!kAlone) Barrier::arrive_and_expect_tx(&full[place], sizeof(int));
    Barrier::arrive(&begun[place]);
  }
  __device__ __forceinline__ void wait_for_begin(int turn) {
    Barrier::wait(&begun[turn % kPlaces], turn / kPlaces % 2);
  }

  __device__ __forceinline__ int wait(int number) {
    const int place = number % kPlaces;
    Barrier::wait(&full[place], number / kPlaces % 2);
    return *const_cast<volatile int*>(&tile[place]);
  }

  template <int kCtas>
  __device__ __forceinline__ void announce(int number, int taken) {
    const int place = number % kPlaces;
    if constexpr (kCtas == 1) {
      *const_cast<volatile int*>(&tile[place]) = taken;
      Barrier::arrive(&full[place]);
    } else {
#pragma unroll
      for (int rank = 0; rank < kCtas; ++rank) {
        asm volatile(
            "{\n"
            ".reg .b32 to, barrier;\n"
            "mapa.shared::cluster.u32 to, %0, %2;\n"
            "mapa.shared::cluster.u32 barrier, %1, %2;\n"
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %3, [barrier];\n"
            "}\n" ::"r"(cute::cast_smem_ptr_to_uint(&tile[place])),
            "r"(cute::cast_smem_ptr_to_uint(&full[place])), "r"(rank), "r"(taken)
            : "memory");
      }
    }
  }
};

// The work of one cluster of CTAs: whole tiles (as TileScheduler of sm90_tile_scheduler.h).
class DynamicTileScheduler {
 public:
  __device__ DynamicTileScheduler(const TileSchedule& schedule, TileQueue& queue, int cluster_m,
                                  int cluster_n)
      : schedule_(schedule),
        queue_(queue),
        cluster_m_(cluster_m),
        cluster_n_(cluster_n),
        index_(blockIdx.x / (cluster_m * cluster_n)) {}

  __device__ bool valid() const { return index_ < schedule_.count; }
  __device__ bool last() const { return following() >= schedule_.count; }
  __device__ void next() {
    index_ = following();
    ++turn_;
  }
  __device__ static constexpr bool ends_tile() { return true; }
  __device__ int steps() const { return schedule_.k_steps; }
  __device__ Work work() const {
    return {tile_at(schedule_, cluster_m_, cluster_n_, index_), 0, schedule_.k_steps, 0};
  }
  // Tiles before this one.
  __device__ int turn() const { return turn_; }

 private:
  __device__ __forceinline__ int following() const {
    const int number = turn_ + 1 - TileSchedule::kGiven;
    return number < 0 ? index_ + int(gridDim.x) / (cluster_m_ * cluster_n_) : queue_.wait(number);
  }

  const TileSchedule& schedule_;
  TileQueue& queue_;
  int cluster_m_, cluster_n_, index_, turn_ = 0;
};

// Takes the tiles of a cluster, by one thread of its first CTA.
template <int kCtas>
__device__ inline void take_tiles(const TileSchedule& schedule, const ExchangeSpace& space,
                                  TileQueue& queue) {
  uint64_t* mark = space.flags;  // `written` once the counter behind it counts
  auto* next = reinterpret_cast<unsigned*>(mark + 1);
  if (blockIdx.x == 0) {
    *next = 0;
    asm volatile("st.release.gpu.b64 [%0], %1;" ::"l"(mark), "l"(space.written) : "memory");
  }
  uint64_t found;
  do {
    asm volatile("ld.acquire.gpu.b64 %0, [%1];" : "=l"(found) : "l"(mark) : "memory");
  } while (found != space.written);

  const int clusters = gridDim.x / kCtas;
  int taken = 0;
  for (int number = 0; taken < schedule.count; ++number) {
    queue.wait_for_begin(number);
    taken = TileSchedule::kGiven * clusters + int(atomicAdd(next, 1u));
    queue.announce<kCtas>(number, taken);
  }
  // Every cluster takes one number too many; the last one of all leaves the counter to the next
  // launch: a graph may repeat this one.
  if (taken == schedule.count + clusters - 1) *mark = 0;
}

}  // namespace fusedops::sm90
