// softmax and log_softmax of rows as row_ends.cuh holds them. A team has one row.
#pragma once

#include "csrc/cuda/rows/softmax/softmax.cuh"
#include "csrc/cuda/rows/team/row_ends.cuh"

namespace fusedops {

template <class T, class Team, uint64_t kCode>
__global__ void __launch_bounds__(RowVariant::of(kCode).threads, RowVariant::of(kCode).blocks)
    softmax_ends_kernel(SoftmaxForward<T, T> p, RowLayout layout) {
  constexpr RowVariant kVariant = RowVariant::of(kCode);
  constexpr bool kRagged = kVariant.ragged;
  constexpr int kVec = kChunkOf<T>, kMax = kVariant.held;
  using Slice = RowEnds<kVec, kRagged, kVariant.full>;
  __shared__ RowSlot<float> slots[Team::kSlots];
  wait_for_predecessor();
  Team team(layout, slots);
  // NOTE: lanes without a row do the last one again.
  const int64_t row = min(team.row(), layout.rows - 1);
  const Slice slice(team.index(), team.size(), layout.n, row);
  const T lowest = from_compute<T>(-INFINITY);
  EndsRow<T, kMax, Slice> x(slice, p.x + row * p.x_stride, lowest);
  x.fill(slice, lowest);

  const float alone = to_compute(x.alone);
  float top = largest(x.held, kMax);
  if constexpr (kRagged) top = larger(top, alone);
  top = team.warp_max(top);
  const float base = finite_top(top);
  float sums[kSums<kVec>] = {};
  if constexpr (kRagged) sums[0] = exp_from<T>(alone, base);
  hold(x.held);
#pragma unroll
  for (int k = 0; k < kMax; ++k) {
#pragma unroll
    for (int e = 0; e < kVec; ++e) sums[e % kSums<kVec>] += exp_from<T>(x.held[k].at(e), base);
  }
  const SoftmaxOutput<T, float> output(join_normaliser<T>(team, top, team.warp_sum(sum_of(sums))),
                                       p.log);
  hold(x.held);
  T* const y = p.y + row * layout.n;
  if (slice.alone()) {
    float value[1];
    output(value, [&](int) { return alone; });
    y[slice.alone_column()] = from_compute<T>(value[0]);
  }
#pragma unroll
  for (int k = 0; k < kMax; ++k) {
    float value[kVec];
    output(value, [&](int e) { return x.held[k].at(e); });
    slice.store(y, k, pack<T>(value));
  }
}

}  // namespace fusedops
