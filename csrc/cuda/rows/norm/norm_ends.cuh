// layer_norm and rms_norm of half rows as row_ends.cuh holds them. A team has one row.
#pragma once

#include "csrc/cuda/rows/norm/norm_direct.cuh"
#include "csrc/cuda/rows/team/row_ends.cuh"

namespace fusedops {

// Lanes of a warp, their number known to the compiler: for rows that they fill.
template <int kLanes>
class FixedLanes {
 public:
  static constexpr int kSlots = 1;
  __device__ __forceinline__ FixedLanes(const RowLayout&, RowSlot<float>*) {}
  __device__ __forceinline__ int index() const { return threadIdx.x % kLanes; }
  static constexpr __device__ int size() { return kLanes; }
  __device__ __forceinline__ int64_t row() const {
    return int64_t{blockIdx.x} * (blockDim.x / kLanes) + threadIdx.x / kLanes;
  }
  __device__ __forceinline__ bool leader() const { return index() == 0; }
  __device__ __forceinline__ float sum(float value) const {
#pragma unroll
    for (int width = kLanes / 2; width > 0; width /= 2) {
      value += __shfl_xor_sync(~0u, value, width);
    }
    return value;
  }
  __device__ __forceinline__ void sum(float& a, float& b) const {
    a = sum(a);
    b = sum(b);
  }
};

// A row's weight and bias: chunks for every head, `pitch` apart.
template <bool kRms, class T, class Slice>
struct EndsParameters {
  static constexpr int kVec = kChunkOf<T>;
  using Chunk = Packed<T, kVec>;
  const T *weights, *biases;
  Chunk weight, bias{};  // of the chunk that comes next
  float weight_alone = 0, bias_alone = 0;
  __device__ __forceinline__ EndsParameters(const NormForward<T, T>& p, const Slice& slice,
                                            int pitch)
      : weights(p.weight + slice.head() * pitch), biases(p.bias + slice.head() * pitch) {
    load(slice, 0);
    if (!slice.alone()) return;
    weight_alone = to_compute(p.weight[slice.alone_column()]);
    if constexpr (!kRms) bias_alone = to_compute(p.bias[slice.alone_column()]);
  }
  __device__ __forceinline__ void load(const Slice& slice, int k) {
    weight = load_once<T, kVec>(weights + slice.place(k));
    if constexpr (!kRms) bias = load_once<T, kVec>(biases + slice.place(k));
  }
};

template <class T, int kVec>
__device__ __forceinline__ Packed<T, kVec> plus(const Packed<T, kVec>& a,
                                                const Packed<T, kVec>& b) {
  float both[kVec];
#pragma unroll
  for (int e = 0; e < kVec; ++e) both[e] = a.at(e) + b.at(e);
  return pack<T>(both);
}
template <class T>
__device__ __forceinline__ T plus(T a, T b) {
  return from_compute<T>(to_compute(a) + to_compute(b));
}

// A row; with kLong the chunks that registers do not hold wait in shared memory.
template <class T, int kMax, bool kLong, class Slice>
struct NormRow : EndsRow<T, kMax, Slice> {
  using Base = EndsRow<T, kMax, Slice>;
  using Base::alone, Base::held, Base::kHeld, Base::kVec;
  using typename Base::Chunk;
  T pivot{};        // element 0
  unsigned shared;  // where this thread's chunks wait

  __device__ __forceinline__ NormRow(const Slice& slice, const T* row, const uint4* waiting)
      : Base(slice, row, T{}), shared(shared_address(waiting) + threadIdx.x * 16) {
    if constexpr (kLong) {
      // NOTE: see copy_evict_last.
#pragma unroll(Slice::kInLines ? 1 : 4)
      for (int k = kHeld; k < slice.rounds(); ++k) {
        copy_evict_last(place(k), row + slice.column(k));
      }
      commit_copies();
    }
    pivot = row[0];
  }
  __device__ __forceinline__ Chunk get(int k) const {
    Chunk out;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.word[0]), "=r"(out.word[1]), "=r"(out.word[2]), "=r"(out.word[3])
                 : "r"(place(k))
                 : "memory");
    return out;
  }
  // Adds another row and stores the sum.
  __device__ __forceinline__ void join(const Slice& slice, const T* other, T* sum) {
    Chunk more[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) more[k] = load_once<T, kVec>(other + slice.column(k));
    if (slice.alone()) {
      alone = plus(alone, other[slice.alone_column()]);
      sum[slice.alone_column()] = alone;
    }
    pivot = plus(pivot, other[0]);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      held[k] = plus(held[k], more[k]);
      slice.store(sum, k, held[k]);
    }
    if constexpr (!kLong) return;
    wait_for_copies();
#pragma unroll 4
    for (int k = kHeld; k < slice.rounds(); ++k) {
      const Chunk both = plus(get(k), load_once<T, kVec>(other + slice.column(k)));
      slice.store(sum, k, both);
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(place(k)), "r"(both.word[0]),
                   "r"(both.word[1]), "r"(both.word[2]), "r"(both.word[3])
                   : "memory");
    }
  }
  template <bool kRms>
  __device__ __forceinline__ DirectSums<kRms, T> sums(const Slice& slice) {
    this->fill(slice, kRms ? from_compute<T>(0.0f) : pivot);
    DirectSums<kRms, T> sums(kRms ? 0.0f : to_compute(pivot));
#pragma unroll
    for (int k = 0; k < kHeld; ++k) sums.add(held[k]);
    if (slice.alone()) sums.add(to_compute(alone));
    if constexpr (kLong) {
      wait_for_copies();
#pragma unroll 4
      for (int k = kHeld; slice.some(k); ++k) sums.add(get(k));
    }
    return sums;
  }

 private:
  __device__ __forceinline__ unsigned place(int k) const {
    return shared + (k - kHeld) * blockDim.x * 16;
  }
};

template <bool kRms, bool kResidual, class T, class Team, uint64_t kCode>
__global__ void __launch_bounds__(RowVariant::of(kCode).threads, RowVariant::of(kCode).blocks)
    norm_ends_kernel(NormForward<T, T> p, int pitch, RowLayout layout) {
  constexpr RowVariant kVariant = RowVariant::of(kCode);
  constexpr bool kRagged = kVariant.ragged, kLong = kVariant.overflows;
  constexpr int kVec = kChunkOf<T>;
  using Chunk = Packed<T, kVec>;
  using Slice = RowEnds<kVec, kRagged, kVariant.full, kRagged && kLong>;
  using Row = NormRow<T, kVariant.held, kLong, Slice>;
  extern __shared__ uint4 waiting[];
  __shared__ RowSlot<float> slots[Team::kSlots];
  // NOTE: the launch that laid parameters of ragged rows out has waited for all that rows come
  // from.
  if constexpr (!kRagged) wait_for_predecessor();
  Team team(layout, slots);
  // NOTE: lanes without a row do the last one again.
  const int64_t row = min(team.row(), layout.rows - 1);
  const Slice slice(team.index(), team.size(), layout.n, row);
  Row x(slice, p.x + row * p.x_stride, waiting);
  if constexpr (kResidual) {
    x.join(slice, p.residual + row * p.residual_stride, p.sum + row * layout.n);
  }
  DirectSums<kRms, T> sums = x.template sums<kRms>(slice);
  // NOTE: not sooner: a thread waits for six groups of loads apart, no more, and would wait for the
  // row together with these.
  if constexpr (kRagged) wait_for_predecessor();
  EndsParameters<kRms, T, Slice> parameters(p, slice, pitch);
  const PivotMoments<T, float> moments =
      sums.moments(team, 1.0f / static_cast<float>(layout.n), p.eps);
  if (team.leader()) {
    if (p.mean != nullptr) p.mean[row] = moments.mean;
    if (p.rstd != nullptr) p.rstd[row] = moments.rstd;
  }
  const Normaliser<kRms> normal(moments);
  hold(x.held);
  T* const y = static_cast<T*>(p.y) + row * layout.n;
  if (slice.alone()) {
    const float value = normal(to_compute(x.alone), parameters.weight_alone, parameters.bias_alone);
    y[slice.alone_column()] = from_compute<T>(value);
  }
  const auto write = [&](int k, const Chunk& chunk) {
    const Chunk weight = parameters.weight, bias = parameters.bias;
    // NOTE: ahead of the store, which loads do not pass.
    if (kLong || k + 1 < Row::kHeld) parameters.load(slice, k + 1);
    slice.store(y, k, normal(chunk, weight, bias));
  };
#pragma unroll
  for (int k = 0; k < Row::kHeld; ++k) write(k, x.held[k]);
  if constexpr (kLong) {
#pragma unroll 2
    for (int k = Row::kHeld; k < slice.rounds(); ++k) write(k, x.get(k));
  }
}

}  // namespace fusedops
