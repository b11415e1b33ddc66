// softmax and log_softmax of rows that threads hold in registers, straight from memory. A team
// has one row, as in norm_direct.cuh.
#pragma once

#include "csrc/cuda/rows/softmax/softmax.cuh"
#include "csrc/cuda/rows/team/row_direct.cuh"

namespace fusedops {

template <class T, class Team, uint64_t kCode>
__global__ void __launch_bounds__(RowVariant::of(kCode).threads, RowVariant::of(kCode).blocks)
    softmax_direct_kernel(SoftmaxForward<T, T> p, RowLayout layout) {
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
  const T* from = p.x + row * p.x_stride;
  const T lowest = from_compute<T>(-INFINITY);
  wait_for_predecessor();
  Chunk x[kMax];
  if constexpr (kLong) slice.fetch_rest(shared_address(rest), from, last);
  Chunk end;
  slice.request(x, end, from, active, last);
  slice.settle(x, end, active, lowest);

  Chunk high = x[0];
  const auto raise = [&](int, const Chunk& chunk) {
#pragma unroll
    for (int w = 0; w < Chunk::kWords; ++w) high.raise(w, chunk);
  };
#pragma unroll
  for (int k = 1; k < kMax; ++k) raise(k, x[k]);
  if constexpr (kLong) {
    slice.wait_for_rest(shared_address(rest), lowest);
    slice.template each_of_rest<T>(shared_address(rest), raise);
  }
  const Chunk highs[1] = {high};
  const float top = team.warp_max(largest(highs, 1)), base = finite_top(top);
  float sums[kSums<kVec>] = {};
  const auto add = [&](int, const Chunk& chunk) {
#pragma unroll
    for (int e = 0; e < kVec; ++e) sums[e % kSums<kVec>] += exp_from<T>(chunk.at(e), base);
  };
  hold(x);
#pragma unroll
  for (int k = 0; k < kMax; ++k) add(k, x[k]);
  if constexpr (kLong) slice.template each_of_rest<T>(shared_address(rest), add);
  const SoftmaxOutput<T, float> output(join_normaliser<T>(team, top, team.warp_sum(sum_of(sums))),
                                       p.log);
  if (!active) return;
  hold(x);
  T* y = p.y + row * layout.n;
  const auto write = [&](int k, const Chunk& chunk) {
    float value[kVec];
    output(value, [&](int e) { return chunk.at(e); });
    slice.store(y, k, pack<T>(value));
  };
#pragma unroll
  for (int k = 0; k < kMax; ++k) write(k, x[k]);
  if constexpr (kLong) slice.template each_of_rest<T>(shared_address(rest), write);
}

}  // namespace fusedops
