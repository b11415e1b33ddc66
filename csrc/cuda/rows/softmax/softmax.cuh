// softmax and log_softmax over contiguous rows, and their backward. One read and one write of
// memory: a row waits in registers while its maximum and sum are formed.
//
// Each warp takes its own maximum and the sum of exponentials relative to it; the warps of a row
// then exchange both once (Milakov and Gimelshein 2018, online normaliser calculation).
#pragma once

#include "csrc/cuda/rows/team/row_normaliser.cuh"
#include "csrc/cuda/rows/team/row_slice.cuh"

namespace fusedops {

template <class T, class O>
struct SoftmaxForward {
  const T* x;  // [rows, n], rows x_stride apart
  O* y;        // [rows, n]
  int64_t x_stride;
  bool log;
};

// The most chunks of a row that a thread holds: one more for rows that begin inside a chunk.
template <bool kRagged>
inline constexpr int kSoftmaxChunks = kRagged ? 9 : 8;

template <class O, class Team, class T, int kVec, int kMax, class C = Compute<T>>
__device__ __forceinline__ RowNormaliser<C> softmax_normaliser(Team& team,
                                                               Packed<T, kVec> (&x)[kMax],
                                                               int count) {
  const C top = team.warp_max(largest(x, count));
  const C base = finite_top(top);
  C sum[kSums<kVec>] = {};
  hold(x);
#pragma unroll
  for (int i = 0; i < kMax; ++i) {
    if (i >= count) break;
#pragma unroll
    for (int e = 0; e < kVec; ++e) sum[e % kSums<kVec>] += exp_from<O>(x[i].at(e), base);
  }
  return join_normaliser<O>(team, top, team.warp_sum(sum_of(sum)));
}

// From x to the output, given the row's normaliser.
//
// Half outputs take 2^(x log2(e) - base) by one FMA; what the rounding of base leaves out is a
// factor that all elements of a row share, so it goes into the scale.
template <class O, class C>
struct SoftmaxOutput {
  C shift, scale;  // log: x - shift - scale; else exp(x - shift) * scale
  C factor = 1;    // half outputs: 2^(x factor - shift) * scale
  bool log;
  __device__ __forceinline__ SoftmaxOutput(const RowNormaliser<C>& row, bool log)
      : shift(row.top), log(log) {
    if (log) {
      scale = standard_log(row.sum);
    } else if constexpr (kFastExp<O>) {
      factor = exponent_factor<O>(row.top);
      shift = __fmul_rn(row.top, factor);
      scale = ex2_approx(-fmaf(row.top, factor, -shift)) / row.sum;
    } else {
      scale = 1 / row.sum;
    }
  }
  template <int kVec, class Fn>
  __device__ __forceinline__ void operator()(C (&y)[kVec], Fn x) const {
    if (log) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) y[e] = x(e) - shift - scale;
    } else {
#pragma unroll
      for (int e = 0; e < kVec; ++e) y[e] = exponential(x(e)) * scale;
    }
  }

 private:
  __device__ __forceinline__ C exponential(C x) const {
    if constexpr (kFastExp<O>) {
      return ex2_approx(fmaf(x, factor, -shift));
    } else {
      return standard_exp(x - shift);
    }
  }
};

template <class T, class O, bool kRagged>
__global__ void __launch_bounds__(kRowThreads)
    softmax_kernel(SoftmaxForward<T, O> p, RowLayout layout) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>, kMax = kSoftmaxChunks<kRagged>;
  extern __shared__ uint4 shared[];
  wait_for_predecessor();
  RowTeam<C> team(layout, shared);
  RowSlice<kVec, kMax, kRagged> slice(team, layout);
  RowRing<kRowStages> ring(shared + row_slot_bytes<C>(layout.cluster, blockDim.x) / 16, team,
                           layout, 1);
  const T lowest = from_compute<T>(-static_cast<C>(INFINITY));

  const auto fetch = [&](int64_t base, int stage) {
    const int64_t row = base + team.sub();
    slice.hold();
    ring.fetch(stage, row < layout.rows, ends_tensor(layout, row), slice,
               RowStream<T>{p.x + row * p.x_stride, 0});
  };
#pragma unroll
  for (int s = 0; s < kRowStages; ++s) fetch(team.first() + s * team.stride(), s);

  int stage = 0;
  for (int64_t base = team.first(); base < layout.rows; base += team.stride()) {
    ring.wait(stage);
    slice.hold();
    ring.fill(stage, 0, lowest, slice);
    Packed<T, kVec> x[kMax];
#pragma unroll
    for (int i = 0; i < kMax; ++i) {
      if (i >= slice.count()) break;
      x[i] = ring.template read<T, kVec>(stage, 0, i);
    }
    const SoftmaxOutput<O, C> output(softmax_normaliser<O>(team, x, slice.count()), p.log);
    team.join();
    fetch(base + kRowStages * team.stride(), stage);
    const int64_t row = base + team.sub();
    hold(x);
    slice.hold();
    if (row < layout.rows) {
      O* y = p.y + row * layout.n;
#pragma unroll
      for (int i = 0; i < kMax; ++i) {
        if (i >= slice.count()) break;
        C value[kVec];
        output(value, [&](int e) { return x[i].at(e); });
        slice.store(i, y, value);
      }
    }
    stage = next_stage(stage);
  }
  ring.drain();
  team.leave();
}

// ---- backward ----

template <class T, class S>
struct SoftmaxBackward {
  const S* dy;  // [rows, n], rows dy_stride apart
  const S* y;   // [rows, n], rows y_stride apart
  T* dx;        // [rows, n]
  int64_t dy_stride, y_stride;
  bool log;
};

// dx of a chunk, given the row's sum of dy * y, or of dy for log_softmax.
template <class S, int kVec, class C, class Dy, class Y>
__device__ __forceinline__ void softmax_grad(C (&dx)[kVec], Dy dy, Y y, C sum, bool log) {
  if (log) {
#pragma unroll
    for (int e = 0; e < kVec; ++e) dx[e] = dy(e) - exp_from<S>(y(e), C{0}) * sum;
  } else {
#pragma unroll
    for (int e = 0; e < kVec; ++e) dx[e] = y(e) * (dy(e) - sum);
  }
}

template <class T, class S, bool kRagged>
__global__ void __launch_bounds__(kRowThreads)
    softmax_backward_kernel(SoftmaxBackward<T, S> p, RowLayout layout) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<S>, kMax = kSoftmaxChunks<kRagged>;
  extern __shared__ uint4 shared[];
  wait_for_predecessor();
  RowTeam<C> team(layout, shared);
  RowSlice<kVec, kMax, kRagged> slice(team, layout);
  RowRing<kRowStages - 1> ring(shared + row_slot_bytes<C>(layout.cluster, blockDim.x) / 16, team,
                               layout, 2);
  const S zero = from_compute<S>(C{0});

  const auto fetch = [&](int64_t base, int stage) {
    const int64_t row = base + team.sub();
    slice.hold();
    ring.fetch(stage, row < layout.rows, ends_tensor(layout, row), slice,
               RowStream<S>{p.dy + row * p.dy_stride, 0}, RowStream<S>{p.y + row * p.y_stride, 1});
  };
#pragma unroll
  for (int s = 0; s < kRowStages - 1; ++s) fetch(team.first() + s * team.stride(), s);

  int stage = 0;
  for (int64_t base = team.first(); base < layout.rows; base += team.stride()) {
    ring.wait(stage);
    slice.hold();
    ring.fill(stage, 0, zero, slice);
    ring.fill(stage, 1, zero, slice);
    C sums[kSums<kVec>] = {};
#pragma unroll
    for (int i = 0; i < kMax; ++i) {
      if (i >= slice.count()) break;
      const auto dy = ring.template read<S, kVec>(stage, 0, i);
      if (p.log) {
#pragma unroll
        for (int e = 0; e < kVec; ++e) sums[e % kSums<kVec>] += dy.at(e);
      } else {
        const auto y = ring.template read<S, kVec>(stage, 1, i);
#pragma unroll
        for (int e = 0; e < kVec; ++e) sums[e % kSums<kVec>] += dy.at(e) * y.at(e);
      }
    }
    const C sum = team.sum(sum_of(sums));
    team.join();
    fetch(base + (kRowStages - 1) * team.stride(), previous_stage(stage));
    const int64_t row = base + team.sub();
    if (row < layout.rows) {
      T* out = p.dx + row * layout.n;
#pragma unroll
      for (int i = 0; i < kMax; ++i) {
        if (i >= slice.count()) break;
        const auto dy = ring.template read<S, kVec>(stage, 0, i);
        const auto y = ring.template read<S, kVec>(stage, 1, i);
        C dx[kVec];
        softmax_grad<S>(
            dx, [&](int e) { return dy.at(e); }, [&](int e) { return y.at(e); }, sum, p.log);
        slice.store(i, out, dx);
      }
    }
    stage = next_stage(stage);
  }
  ring.drain();
  team.leave();
}

}  // namespace fusedops
