// The gradient of softmax and log_softmax of half rows as row_ends.cuh holds them. A team has one
// row.
#pragma once

#include "csrc/cuda/rows/softmax/softmax.cuh"
#include "csrc/cuda/rows/team/row_ends.cuh"

namespace fusedops {

template <class T, class Team, uint64_t kCode>
__global__ void __launch_bounds__(RowVariant::of(kCode).threads, RowVariant::of(kCode).blocks)
    softmax_backward_ends_kernel(SoftmaxBackward<T, T> p, RowLayout layout) {
  constexpr RowVariant kVariant = RowVariant::of(kCode);
  constexpr bool kRagged = kVariant.ragged;
  constexpr int kVec = kChunkOf<T>, kMax = kVariant.held;
  using Slice = RowEnds<kVec, kRagged, kVariant.full>;
  using Row = EndsRow<T, kMax, Slice>;
  __shared__ RowSlot<float> slots[Team::kSlots];
  wait_for_predecessor();
  Team team(layout, slots);
  // NOTE: lanes without a row do the last one again.
  const int64_t row = min(team.row(), layout.rows - 1);
  const Slice slice(team.index(), team.size(), layout.n, row);
  const T zero = from_compute<T>(0.0f);
  Row dy(slice, p.dy + row * p.dy_stride, zero), y(slice, p.y + row * p.y_stride, zero);
  if constexpr (requires { team.ready(); }) team.ready();
  dy.fill(slice, zero);
  y.fill(slice, zero);

  const float dy_alone = to_compute(dy.alone), y_alone = to_compute(y.alone);
  float sums[kSums<kVec>] = {};
  if constexpr (kRagged) sums[0] = p.log ? dy_alone : dy_alone * y_alone;
#pragma unroll
  for (int k = 0; k < kMax; ++k) {
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      const float x = dy.held[k].at(e);
      sums[e % kSums<kVec>] += p.log ? x : x * y.held[k].at(e);
    }
  }
  const float sum = team.sum(sum_of(sums));
  hold(dy.held);
  hold(y.held);
  T* const out = p.dx + row * layout.n;
  if (slice.alone()) {
    float dx[1];
    softmax_grad<T>(dx, [&](int) { return dy_alone; }, [&](int) { return y_alone; }, sum, p.log);
    out[slice.alone_column()] = from_compute<T>(dx[0]);
  }
#pragma unroll
  for (int k = 0; k < kMax; ++k) {
    float dx[kVec];
    softmax_grad<T>(
        dx, [&](int e) { return dy.held[k].at(e); }, [&](int e) { return y.held[k].at(e); }, sum,
        p.log);
    slice.store(out, k, pack<T>(dx));
  }
}

}  // namespace fusedops
