// y = dropout(x + bias) + residual and its backward: functors for the elementwise engine and for
// the pass with column sums. The mask is recomputed from seed and position (common/philox.h).
#pragma once

#include "csrc/common/philox.h"
#include "csrc/cuda/elementwise/column_pass.cuh"
#include "csrc/cuda/elementwise/elementwise.cuh"

namespace fusedops {

struct Dropout {
  const int64_t* seed = nullptr;  // on the device; read where the rule drops something
  DropoutRule rule;

  // keep[i]: element first + i is kept. aligned: first is a multiple of kVec, a power of two.
  template <int kVec>
  __device__ __forceinline__ void mask(int64_t first, bool aligned, bool (&keep)[kVec]) const {
    unsigned bits = ~0u;
    if (rule.drops) {
      const uint64_t key = *seed;
      if constexpr (kVec == 1) {
        keep[0] = keeps(key, first);
        return;
      }
      if (aligned || first % 4 == 0) {
        Random4 random[(kVec + 3) / 4];
        philox(key, first >> 2, random);
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          uint32_t word = random[i / 4].word[i % 4];
          if (kVec == 2 && (first & 2)) word = random[0].word[(i + 2) % 4];
          keep[i] = rule.keeps(word);
        }
        return;
      }
      bits = kept_bits(key, first, kVec);
    }
#pragma unroll
    for (int i = 0; i < kVec; ++i) keep[i] = bits >> i & 1;
  }

 private:
  __device__ __forceinline__ bool keeps(uint64_t key, int64_t element) const {
    Random4 random[1];
    philox(key, element >> 2, random);
    const int lane = element & 3;
    const uint32_t low = lane & 1 ? random->word[1] : random->word[0];
    const uint32_t high = lane & 1 ? random->word[3] : random->word[2];
    return rule.keeps(lane & 2 ? high : low);
  }

  // One counter per element. NOTE: not inlined; only chunks of an unaligned out get here.
  __device__ __noinline__ unsigned kept_bits(uint64_t key, int64_t first, int count) const {
    unsigned bits = 0;
    for (int i = 0; i < count; ++i) {
      bits |= unsigned{keeps(key, first + i)} << i;
    }
    return bits;
  }
};

// Inputs x, bias, residual; absent ones read as -0.
template <class T>
struct BiasDropoutResidual {
  static constexpr int kInputs = 3;
  static constexpr unsigned kPerColumn = 0b010;
  static constexpr bool kLight = false;
  Dropout dropout;

  template <int kN>
  __device__ __forceinline__ Vec<T, kN> operator()(const Vec<T, kN> (&in)[kInputs],
                                                   ChunkAt at) const {
    using C = Compute<T>;
    bool keep[kN];
    dropout.mask(at.first, at.aligned, keep);
    const C scale = static_cast<C>(dropout.rule.scale);
    C out[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const C z = to_compute(in[0].value[i]) + to_compute(in[1].value[i]);
      const C kept = keep[i] ? z * scale : C(0);
      out[i] = kept + to_compute(in[2].value[i]);
    }
    return rounded<T>(out);
  }
  template <class Use>
  __device__ __forceinline__ void resolve(Use&& use) const {
    use(*this);
  }
};

// Input dy; result dx = dy * mask / (1 - p), sum dbias = dx.
template <class T>
struct DropoutBackward {
  static constexpr int kInputs = 1, kSums = 1;
  using C = Compute<T>;
  Dropout dropout;
  int64_t cols;

  template <int kVec>
  struct Columns {};
  template <int kVec>
  __device__ __forceinline__ Columns<kVec> load(int64_t, int64_t) const {
    return {};
  }

  template <int kVec>
  __device__ __forceinline__ Vec<T, kVec> apply(const Columns<kVec>&,
                                                const Vec<T, kVec> (&in)[kInputs], int64_t row,
                                                int64_t col, C (&sums)[kSums][kVec]) const {
    bool keep[kVec];
    dropout.mask(row * cols + col, kVec > 1, keep);  // whole vectors to a row
    const C scale = static_cast<C>(dropout.rule.scale);
    Vec<T, kVec> dx;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const C z = keep[i] ? to_compute(in[0].value[i]) * scale : C(0);
      sums[0][i] += z;
      dx.value[i] = from_compute<T>(z);
    }
    return dx;
  }
};

}  // namespace fusedops
