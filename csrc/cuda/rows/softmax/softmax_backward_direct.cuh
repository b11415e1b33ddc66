// The gradient of softmax and log_softmax of half rows that threads hold straight from memory.
#pragma once

#include "csrc/cuda/rows/softmax/softmax.cuh"
#include "csrc/cuda/rows/team/row_direct.cuh"

namespace fusedops {

// The blocks of a cluster, whose warps have a part of the row each.
class ClusterTeam {
 public:
  static constexpr int kSlots = kDirectSlots + 1;  // a float of every warp, then a barrier
  __device__ __forceinline__ ClusterTeam(const RowLayout& layout, RowSlot<float>* slots)
      : cluster_(layout.cluster),
        rank_(static_cast<int>(cluster_rank())),
        slots_(reinterpret_cast<float*>(slots)),
        barrier_(shared_address(slots + kDirectSlots)) {
    if (threadIdx.x == 0) {
      init_barrier(barrier_, 1);
      release_barrier_init();
    }
  }
  // Every block of the cluster has started: before any sum.
  __device__ __forceinline__ void ready() const { cluster_sync(); }

  __device__ __forceinline__ int index() const {
    return rank_ * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  }
  __device__ __forceinline__ int size() const { return cluster_ * static_cast<int>(blockDim.x); }
  __device__ __forceinline__ int64_t row() const { return blockIdx.x / cluster_; }
  static constexpr __device__ bool always() { return true; }

  // Once. NOTE: whoever has all bytes is written to no more, and may leave.
  __device__ __forceinline__ float sum(float value) const {
    const int warps = static_cast<int>(blockDim.x) / 32, lane = threadIdx.x % 32;
    const int mine = rank_ * warps + static_cast<int>(threadIdx.x) / 32;
    value = warp_sum(value);
    if (threadIdx.x == 0) expect_bytes(barrier_, cluster_ * warps * unsigned{sizeof(float)});
    if (lane < cluster_) send_to_block(shared_address(slots_ + mine), barrier_, lane, value);
    wait_for_bytes(barrier_, 0);
    value = 0;
    for (int i = lane; i < cluster_ * warps; i += 32) value += slots_[i];
    return warp_sum(value);
  }

 private:
  static __device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int width = 16; width > 0; width /= 2) value += __shfl_xor_sync(~0u, value, width);
    return value;
  }
  int cluster_, rank_;
  float* slots_;
  unsigned barrier_;
};

// Shared memory holds what registers do not: dy first, then y.
template <class T, class Team, uint64_t kCode>
__global__ void __launch_bounds__(RowVariant::of(kCode).threads, RowVariant::of(kCode).blocks)
    softmax_backward_direct_kernel(SoftmaxBackward<T, T> p, RowLayout layout) {
  constexpr RowVariant kVariant = RowVariant::of(kCode);
  constexpr bool kLong = kVariant.overflows;
  constexpr int kVec = kChunkOf<T>, kMax = kVariant.held;
  using Chunk = Packed<T, kVec>;
  extern __shared__ uint4 rest[];
  __shared__ RowSlot<float> slots[Team::kSlots];
  Team team(layout, slots);
  const int64_t row = team.row();
  const bool active = team.always() || row < layout.rows, last = ends_tensor(layout, row);
  const DirectRow<kVec, kMax, kVariant.ragged> slice(team, layout, row);
  Chunk dy[kMax], y[kMax], dy_end, y_end;
  const T zero = from_compute<T>(0.0f);
  const T *const dy_row = p.dy + row * p.dy_stride, *const y_row = p.y + row * p.y_stride;
  const unsigned dy_rest = shared_address(rest), y_rest = dy_rest + layout.pitch;
  wait_for_predecessor();
  if constexpr (kLong) {
    slice.fetch_rest(dy_rest, dy_row, last);
    slice.fetch_rest(y_rest, y_row, last);
  }
  slice.request(dy, dy_end, dy_row, active, last);
  slice.request(y, y_end, y_row, active, last);
  if constexpr (requires { team.ready(); }) team.ready();
  slice.settle(dy, dy_end, active, zero);
  slice.settle(y, y_end, active, zero);
  float sums[kSums<kVec>] = {};
  const auto add = [&](const Chunk& dy, const Chunk& y) {
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      sums[e % kSums<kVec>] += p.log ? dy.at(e) : dy.at(e) * y.at(e);
    }
  };
#pragma unroll
  for (int k = 0; k < kMax; ++k) add(dy[k], y[k]);
  if constexpr (kLong) {
    slice.wait_for_rest(dy_rest, zero);
    slice.wait_for_rest(y_rest, zero);
#pragma unroll 2
    for (int k = kMax; slice.some(k); ++k) {
      add(slice.template get<T>(dy_rest, k), slice.template get<T>(y_rest, k));
    }
  }
  const float sum = team.sum(sum_of(sums));
  if (!active) return;
  hold(dy);
  hold(y);
  T* const out = p.dx + row * layout.n;
  const auto write = [&](int k, const Chunk& dy, const Chunk& y) {
    float dx[kVec];
    softmax_grad<T>(
        dx, [&](int e) { return dy.at(e); }, [&](int e) { return y.at(e); }, sum, p.log);
    slice.store(out, k, pack<T>(dx));
  };
#pragma unroll
  for (int k = 0; k < kMax; ++k) write(k, dy[k], y[k]);
  if constexpr (kLong) {
#pragma unroll 2
    for (int k = kMax; slice.some(k); ++k) {
      write(k, slice.template get<T>(dy_rest, k), slice.template get<T>(y_rest, k));
    }
  }
}

}  // namespace fusedops
