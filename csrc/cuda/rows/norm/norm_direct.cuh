// layer_norm and rms_norm of half rows that threads hold in registers, straight from memory. A team
// has one row: blocks that come and go spread the rows over multiprocessors that differ in speed.
#pragma once

#include "csrc/cuda/rows/norm/norm.cuh"
#include "csrc/cuda/rows/team/row_direct.cuh"

namespace fusedops {

// Sums over a thread's elements beyond the pivot, from which a row's moments are made.
template <bool kRms, class T>
struct DirectSums {
  static constexpr int kVec = kChunkOf<T>;
  float pivot, sum[kSums<kVec>] = {}, square[kSums<kVec>] = {};
  __device__ __forceinline__ DirectSums(float pivot) : pivot(pivot) {}
  __device__ __forceinline__ void add(const Packed<T, kVec>& x) {
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      const float d = kRms ? x.at(e) : x.at(e) - pivot;
      if (!kRms) sum[e % kSums<kVec>] += d;
      square[e % kSums<kVec>] += d * d;
    }
  }
  __device__ __forceinline__ void add(float x) {
    const float d = kRms ? x : x - pivot;
    if (!kRms) sum[0] += d;
    square[0] += d * d;
  }
  template <class Team>
  __device__ __forceinline__ PivotMoments<T, float> moments(Team& team, float inverse_n,
                                                            float eps) {
    float squares = sum_of(square), total = 0;
    if constexpr (kRms) {
      squares = team.sum(squares);
    } else {
      total = sum_of(sum);
      team.sum(squares, total);
    }
    return moments(total, squares, inverse_n, eps);
  }
  // Forms the moments from the sums of all threads.
  __device__ __forceinline__ PivotMoments<T, float> moments(float total, float squares,
                                                            float inverse_n, float eps) const {
    const float mean = total * inverse_n, variance = squares * inverse_n - mean * mean;
    return {pivot, mean, variance < 0 ? 0.0f : variance, eps};  // NOTE: NaN stays
  }
};

// (x - mean) * rstd * weight + bias of a row.
template <bool kRms>
struct Normaliser {
  float rstd, shift;
  template <class T>
  __device__ __forceinline__ explicit Normaliser(const PivotMoments<T, float>& moments)
      : rstd(moments.rstd), shift(-moments.mean * moments.rstd) {}
  __device__ __forceinline__ float operator()(float x, float weight, float bias) const {
    return kRms ? x * rstd * weight : fmaf(fmaf(x, rstd, shift), weight, bias);
  }
  template <class T, int kVec>
  __device__ __forceinline__ Packed<T, kVec> operator()(const Packed<T, kVec>& x,
                                                        const Packed<T, kVec>& weight,
                                                        const Packed<T, kVec>& bias) const {
    float y[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      y[e] = (*this)(x.at(e), weight.at(e), kRms ? 0.0f : bias.at(e));
    }
    return pack<T>(y);
  }
};

// Rows of so few chunks per thread take parameters as they are: laying them out costs a launch.
inline constexpr int kPlainChunks = 2;

// A parameter of the row: where its chunks lie as the row's do, `pitch` apart for each place where
// a row can begin; or as it is, or null.
template <class W, int kVec, int kMax, bool kRagged>
struct DirectParameter {
  const W* from;
  float missing;
  __device__ __forceinline__ DirectParameter(const W* parameter, int pitch, int shift,
                                             float missing)
      : from(kMax <= kPlainChunks ? parameter : parameter + shift * pitch), missing(missing) {}
  __device__ __forceinline__ Packed<W, kVec> load(const DirectRow<kVec, kMax, kRagged>& slice,
                                                  int k) const {
    if (kMax <= kPlainChunks && from == nullptr) return splat<W, kVec>(from_compute<W>(missing));
    if constexpr (kRagged && kMax <= kPlainChunks) {
      return slice.plain_parameter(from, k);
    } else {
      return slice.parameter(from, k);
    }
  }
};

template <bool kRms, bool kResidual, class T, class Team, uint64_t kCode>
__global__ void __launch_bounds__(RowVariant::of(kCode).threads, RowVariant::of(kCode).blocks)
    norm_direct_kernel(NormForward<T, T> p, int pitch, RowLayout layout) {
  constexpr RowVariant kVariant = RowVariant::of(kCode);
  constexpr bool kRagged = kVariant.ragged;
  constexpr int kVec = kChunkOf<T>, kMax = kVariant.held;
  // NOTE: the launch that laid parameters out has waited for all that rows come from.
  constexpr bool kLaidOut = kRagged && kMax > kPlainChunks;
  using Chunk = Packed<T, kVec>;
  __shared__ RowSlot<float> slots[Team::kSlots];
  Team team(layout, slots);
  const int64_t row = team.row();
  const bool active = team.always() || row < layout.rows, last = ends_tensor(layout, row);
  const DirectRow<kVec, kMax, kRagged> slice(team, layout, row);
  const DirectParameter<T, kVec, kMax, kRagged> weights(p.weight, pitch, slice.shift(), 1.0f);
  const DirectParameter<T, kVec, kMax, kRagged> biases(p.bias, pitch, slice.shift(), 0.0f);

  const T* from = p.x + row * p.x_stride;
  if constexpr (!kLaidOut) wait_for_predecessor();
  Chunk x[kMax];
  Chunk end;
  slice.request(x, end, from, active, last);
  const T pivot = norm_pivot<kRms>(p, row, layout.rows);
  if constexpr (!kResidual) {
    slice.settle(x, end, active, pivot);
  } else {
    const T* other = p.residual + row * p.residual_stride;
    const T zero = from_compute<T>(0.0f);
    T* sum = p.sum + row * layout.n;
    Chunk residual[kMax], residual_end;
    slice.request(residual, residual_end, other, active, last);
    slice.settle(x, end, active, pivot);
    slice.settle(residual, residual_end, active, zero);
#pragma unroll
    for (int k = 0; k < kMax; ++k) {
      float both[kVec];
#pragma unroll
      for (int e = 0; e < kVec; ++e) both[e] = x[k].at(e) + residual[k].at(e);
      x[k] = pack<T>(both);
      if (active) slice.store(sum, k, x[k]);
    }
  }
  if constexpr (kLaidOut) wait_for_predecessor();
  constexpr int kReady = kMax <= kPlainChunks ? kMax : 1;  // chunks of parameters at a time
  Chunk weight[kReady], bias[kReady] = {};
#pragma unroll
  for (int k = 0; k < kReady; ++k) {
    weight[k] = weights.load(slice, k);
    if constexpr (!kRms) bias[k] = biases.load(slice, k);
  }
  DirectSums<kRms, T> sums(to_compute(pivot));
#pragma unroll
  for (int k = 0; k < kMax; ++k) sums.add(x[k]);
  const PivotMoments<T, float> moments =
      sums.moments(team, 1.0f / static_cast<float>(layout.n), p.eps);
  if (!active) return;
  if (team.leader()) {
    if (p.mean != nullptr) p.mean[row] = moments.mean;
    if (p.rstd != nullptr) p.rstd[row] = moments.rstd;
  }
  const Normaliser<kRms> normal(moments);
  hold(x);
  T* y = static_cast<T*>(p.y) + row * layout.n;
#pragma unroll
  for (int k = 0; k < kMax; ++k) {
    const Chunk weight_here = weight[k % kReady], bias_here = bias[k % kReady];
    // NOTE: ahead of the store, which loads do not pass.
    if (kReady < kMax && k + 1 < kMax) {
      weight[0] = weights.load(slice, k + 1);
      if constexpr (!kRms) bias[0] = biases.load(slice, k + 1);
    }
    slice.store(y, k, normal(x[k], weight_here, bias_here));
  }
}

// Lays parameters out for each place inside a chunk where a row can begin: blockIdx.y. Those that
// are missing as well. kEnds: for norm_ends.cuh, the first blockIdx.y elements left out.
template <bool kEnds, class T>
__global__ void __launch_bounds__(kStreamThreads)
    norm_parameter_kernel(const T* weight, const T* bias, T* out, int n, int pitch) {
  wait_for_predecessor();
  const int i = blockIdx.x * kStreamThreads + threadIdx.x, shift = blockIdx.y;
  if (i >= pitch) return;
  const int ahead = i + shift < n ? i + shift : -1;
  const int column = kEnds ? ahead : DirectRow<kChunkOf<T>, 1, true>::parameter_column(i, shift, n);
  const auto at = [&](const T* parameter, float missing) {
    return parameter == nullptr || column < 0 ? from_compute<T>(missing) : parameter[column];
  };
  T* const to = out + int64_t{shift} * pitch + i;
  to[0] = at(weight, 1.0f);
  to[int64_t{gridDim.y} * pitch] = at(bias, 0.0f);
}

}  // namespace fusedops
