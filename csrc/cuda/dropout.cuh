// y = dropout(x + bias) + residual and its backward: functors for the elementwise engine and for
// the pass with column sums. The mask is recomputed from seed and position (common/philox.h).
#pragma once

#include "common/philox.h"
#include "cuda/column_pass.cuh"
#include "cuda/elementwise.cuh"

namespace fusedops {

struct Dropout {
  const int64_t* seed = nullptr;  // on the device; read where the rule drops something
  DropoutRule rule;

  // keep[i]: element first + i is kept.
  template <int kVec>
  __device__ __forceinline__ void mask(int64_t first, bool (&keep)[kVec]) const {
    if (!rule.drops) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) keep[i] = true;
      return;
    }
    const uint64_t key = *seed;
    if (first % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kVec; i += 4) {
        const Random4 random = philox(key, first / 4 + i / 4);
#pragma unroll
        for (int j = 0; j < 4 && i + j < kVec; ++j) keep[i + j] = rule.keeps(random.word[j]);
      }
      return;
    }
#pragma unroll 1
    for (int64_t counter = first >> 2; counter * 4 < first + kVec; ++counter) {
      const Random4 random = philox(key, counter);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const int64_t lane = first + i - counter * 4;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (lane == j) keep[i] = rule.keeps(random.word[j]);
        }
      }
    }
  }
};

// Inputs x, bias, residual; absent ones read as -0.
template <class T>
struct BiasDropoutResidual {
  static constexpr int kInputs = 3;
  using V = Vec<T, kChunk<T>>;
  Dropout dropout;

  __device__ __forceinline__ V operator()(const V (&in)[kInputs], int64_t first) const {
    using C = Compute<T>;
    bool keep[kChunk<T>];
    dropout.mask(first, keep);
    const C scale = static_cast<C>(dropout.rule.scale);
    V out;
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      const C z = to_compute(in[0].value[i]) + to_compute(in[1].value[i]);
      const C kept = keep[i] ? z * scale : C(0);
      out.value[i] = from_compute<T>(kept + to_compute(in[2].value[i]));
    }
    return out;
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
  __device__ __forceinline__ Columns<kVec> load(int64_t) const {
    return {};
  }

  template <int kVec>
  __device__ __forceinline__ Vec<T, kVec> apply(const Columns<kVec>&,
                                                const Vec<T, kVec> (&in)[kInputs], int64_t row,
                                                int64_t col, C (&sums)[kSums][kVec]) const {
    bool keep[kVec];
    dropout.mask(row * cols + col, keep);
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
