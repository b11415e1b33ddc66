// How threads share a row of memory: softmax, norms and their backward.
//
// A row is cut into chunks of 16 bytes, aligned in memory whatever the row length: a row of odd
// length starts inside a chunk that it shares with the row before, and only this first and the last
// chunk are partial. A team of threads holds the row: up to 32 threads of a warp, or a whole block,
// or a cluster of blocks with a part of the row each. A thread has every size-th chunk of the part.
//
// Teams walk over rows with a stride that keeps a row's offset inside its chunk, so a thread's
// columns stay the same and parameters and column sums live in registers.
#pragma once

#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/row_chunk.cuh"
#include "csrc/cuda/rows/team/row_barrier.cuh"
#include "csrc/cuda/rows/team/row_layout.h"

namespace fusedops {

// The threads of a row, the rows they walk over, and how they agree on a value.
template <class C>
class RowTeam {
 public:
  // holders: threads of a block that hold chunks, its first ones; the others tell sums only.
  __device__ __forceinline__ RowTeam(const RowLayout& layout, void* slots, int holders = blockDim.x)
      : lanes_(layout.lanes),
        cluster_(layout.cluster),
        lane_(threadIdx.x % 32),
        slots_(static_cast<RowSlot<C>*>(slots)) {
    if (cluster_ == 0) {
      const int teams = blockDim.x / lanes_;
      index_ = threadIdx.x % lanes_;
      size_ = lanes_;
      sub_ = lane_ / lanes_;
      first_ = int64_t{blockIdx.x} * teams + threadIdx.x / 32 * (32 / lanes_);
      stride_ = int64_t{gridDim.x} * teams;
    } else {
      rank_ = cluster_ > 1 ? static_cast<int>(cluster_rank()) : 0;
      warps_ = cluster_ * (blockDim.x / 32);
      warp_ = rank_ * (blockDim.x / 32) + threadIdx.x / 32;
      index_ = static_cast<int>(threadIdx.x) < holders ? threadIdx.x : 0;
      size_ = holders;
      first_ = blockIdx.x / cluster_;
      stride_ = gridDim.x / cluster_;
      barrier_ = shared_address(slots_) + 2 * warps_ * kSlotValues * static_cast<int>(sizeof(C));
      if (cluster_ > 1) {
        if (threadIdx.x == 0) {
          for (int i = 0; i < 2; ++i) init_barrier(barrier_ + 8 * i, 1);
          release_barrier_init();
        }
        cluster_sync();  // nobody writes to a block that has not started
      }
    }
  }

  // This thread's number among the `size` that share the block's part of the row.
  __device__ __forceinline__ int index() const { return index_; }
  __device__ __forceinline__ int size() const { return size_; }
  __device__ __forceinline__ int rank() const { return rank_; }
  __device__ __forceinline__ int lanes() const { return lanes_; }
  // NOTE: loops run from first() on, the same for a whole warp, since lanes of several rows shuffle
  // together; the row of this lane is sub() further.
  __device__ __forceinline__ int64_t first() const { return first_; }
  __device__ __forceinline__ int sub() const { return sub_; }
  __device__ __forceinline__ int64_t stride() const { return stride_; }
  __device__ __forceinline__ bool in_warp() const { return cluster_ == 0; }
  __device__ __forceinline__ bool leader() const { return index_ == 0 && rank_ == 0; }

  // Over the row's lanes in this warp.
  __device__ __forceinline__ C warp_sum(C value) const {
    return warp_fold(value, [](C a, C b) { return a + b; });
  }
  __device__ __forceinline__ C warp_max(C value) const {
    return warp_fold(value, [](C a, C b) { return larger(a, b); });
  }

  // Every warp's values to every warp of the row: read them with slots().
  // NOTE: two sets of slots in turn, so that one barrier per row is enough.
  __device__ __forceinline__ void publish(C a, C b, C c = 0) {
    parity_ ^= 1;
    phase_ ^= parity_;
    RowSlot<C>* mine = slots_ + parity_ * warps_ + warp_;
    if (cluster_ == 1) {
      if (lane_ == 0) *mine = {a, b, c};
      __syncthreads();
    } else {
      const unsigned barrier = barrier_ + 8 * parity_;
      if (threadIdx.x == 0) expect_bytes(barrier, warps_ * sizeof(RowSlot<C>));
      if (lane_ < cluster_)
        send_to_block(shared_address(mine), barrier, lane_, RowSlot<C>{a, b, c});
      wait_for_barrier(barrier, phase_);
    }
  }

  // Sum over the published slots, the same bits in every thread.
  template <class Fn>
  __device__ __forceinline__ C sum_slots(Fn fn) const {
    C sum = 0;
    if (warps_ <= kFewWarps) {
#pragma unroll 4
      for (int i = 0; i < warps_; ++i) sum += fn(slots_[parity_ * warps_ + i]);
      return sum;
    }
#pragma unroll 1
    for (int i = lane_; i < warps_; i += 32) sum += fn(slots_[parity_ * warps_ + i]);
    return warp_sum(sum);
  }
  __device__ __forceinline__ C max_slot_a() const {
    C top = -static_cast<C>(INFINITY);
    if (warps_ <= kFewWarps) {
#pragma unroll 4
      for (int i = 0; i < warps_; ++i) top = larger(top, slots_[parity_ * warps_ + i].a);
      return top;
    }
#pragma unroll 1
    for (int i = lane_; i < warps_; i += 32) {
      top = larger(top, slots_[parity_ * warps_ + i].a);
    }
    return warp_max(top);
  }

  // Over the whole row.
  __device__ __forceinline__ C sum(C value) {
    value = warp_sum(value);
    if (in_warp()) return value;
    publish(value, 0);
    return sum_slots([](const RowSlot<C>& s) { return s.a; });
  }
  __device__ __forceinline__ void sum(C& a, C& b) {
    a = warp_sum(a);
    b = warp_sum(b);
    if (in_warp()) return;
    publish(a, b);
    a = sum_slots([](const RowSlot<C>& s) { return s.a; });
    b = sum_slots([](const RowSlot<C>& s) { return s.b; });
  }

  // Several values over the whole row: fewer shuffles than one by one, and one barrier.
  template <int kCount>
  __device__ __forceinline__ void sum_all(C (&value)[kCount]) {
    static_assert((kCount & (kCount - 1)) == 0);
    if (lanes_ < 32) {
#pragma unroll 1
      for (int width = lanes_ / 2; width > 0; width /= 2) {
#pragma unroll
        for (int v = 0; v < kCount; ++v) value[v] += __shfl_xor_sync(~0u, value[v], width);
      }
      return;
    }
    constexpr int kShare = 32 / kCount;  // lanes of a value
    C mine = fold_lanes(value);
    if (!in_warp()) mine = exchange<kCount>(mine);
#pragma unroll
    for (int v = 0; v < kCount; ++v) value[v] = __shfl_sync(~0u, mine, v * kShare);
  }

  // Folds value lane / (32 / kCount) over all lanes of a whole warp.
  template <int kCount>
  __device__ __forceinline__ C fold_lanes(C (&value)[kCount]) const {
    int width = 16;
#pragma unroll
    for (int half = kCount / 2; half > 0; half /= 2, width /= 2) {
      const bool upper = lane_ & width;
#pragma unroll
      for (int v = 0; v < half; ++v) {
        const C kept = upper ? value[v + half] : value[v];
        value[v] = kept + __shfl_xor_sync(~0u, upper ? value[v] : value[v + half], width);
      }
    }
#pragma unroll
    for (; width > 0; width /= 2) value[0] += __shfl_xor_sync(~0u, value[0], width);
    return value[0];
  }
  __device__ __forceinline__ int lane() const { return lane_; }
  __device__ __forceinline__ int warp() const { return warp_; }  // of the row
  __device__ __forceinline__ int warps() const { return warps_; }
  __device__ __forceinline__ int cluster() const { return cluster_; }

  // The threads of the row that share memory: each has read what it read before this, given that
  // the row has been summed in between.
  __device__ __forceinline__ void join() const {
    if (in_warp()) __syncwarp();
  }

  // No block may leave while another one of its cluster can still write to it.
  __device__ __forceinline__ void leave() const {
    if (cluster_ > 1) cluster_sync();
  }

 private:
  static constexpr int kFewWarps = 8;  // whose slots every thread reads

  template <class Fn>
  __device__ __forceinline__ C warp_fold(C value, Fn fn) const {
    if (lanes_ == 32) {
#pragma unroll
      for (int width = 16; width > 0; width /= 2) {
        value = fn(value, __shfl_xor_sync(~0u, value, width));
      }
      return value;
    }
    // NOTE: selects, since a branch around a shuffle costs more than the shuffle.
#pragma unroll
    for (int width = 16; width > 0; width /= 2) {
      const C joined = fn(value, __shfl_xor_sync(~0u, value, width));
      value = lanes_ > width ? joined : value;
    }
    return value;
  }

  // The sum over the warps of what fold_lanes gave each.
  template <int kCount>
  __device__ __forceinline__ C exchange(C mine) {
    static_assert(kCount <= kSlotValues);
    constexpr int kShare = 32 / kCount;
    parity_ ^= 1;
    phase_ ^= parity_;
    const int value = lane_ / kShare, part = lane_ % kShare;
    C* const set = reinterpret_cast<C*>(slots_) + parity_ * warps_ * kCount;
    C* const slot = set + warp_ * kCount + value;
    if (cluster_ == 1) {
      if (part == 0) *slot = mine;
      __syncthreads();
    } else {
      const unsigned barrier = barrier_ + 8 * parity_;
      if (threadIdx.x == 0) {
        expect_bytes(barrier, warps_ * kCount * static_cast<unsigned>(sizeof(C)));
      }
#pragma unroll 1
      for (int rank = part; rank < cluster_; rank += kShare) {
        send_to_block(shared_address(slot), barrier, rank, mine);
      }
      wait_for_bytes(barrier, phase_);
    }
    C sum = 0;
#pragma unroll 4
    for (int w = part; w < warps_; w += kShare) sum += set[w * kCount + value];
#pragma unroll
    for (int width = kShare / 2; width > 0; width /= 2) sum += __shfl_xor_sync(~0u, sum, width);
    return sum;
  }

  int lanes_, cluster_, lane_;
  int index_, size_;
  int sub_ = 0, rank_ = 0, warps_ = 1, warp_ = 0, parity_ = 0, phase_ = 1;
  unsigned barrier_ = 0;  // one for either set of slots
  int64_t first_, stride_;
  RowSlot<C>* slots_;
};

// Steps along the ring of rows that a team walks.
__device__ __forceinline__ int next_stage(int stage) {
  return stage + 1 == kRowStages ? 0 : stage + 1;
}
__device__ __forceinline__ int previous_stage(int stage) {
  return stage == 0 ? kRowStages - 1 : stage - 1;
}

}  // namespace fusedops
