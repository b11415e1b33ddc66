// csrc/common/device/mma.cuh for a CPU: each lane shows its registers, and computes its results
// from those of the others.
#pragma once

#include "emulated.h"

namespace fusedops {

template <class T>
uint16_t rounded_bits(float x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __builtin_bit_cast(uint16_t, __float2half_rn(x));
  } else {
    return __builtin_bit_cast(uint16_t, __float2bfloat16_rn(x));
  }
}

template <class T>
float value_of(uint64_t word, int half) {
  const auto bits = static_cast<uint16_t>(word >> 16 * half);
  if constexpr (std::is_same_v<T, __half>) {
    return __half2float(__builtin_bit_cast(__half, bits));
  } else {
    return __bfloat162float(__builtin_bit_cast(__nv_bfloat16, bits));
  }
}

template <class T>
uint32_t pack_pair(float low, float high) {
  return rounded_bits<T>(low) | static_cast<uint32_t>(rounded_bits<T>(high)) << 16;
}

template <class T>
uint32_t pack_relu(float low, float high) {
  return pack_pair<T>(emulated::max_or_nan(low, 0.f), emulated::max_or_nan(high, 0.f));
}

template <class T>
float2 unpack_pair(uint32_t pair) {
  return {value_of<T>(pair, 0), value_of<T>(pair, 1)};
}

// Where element (row, k) of a and (k, column) of b are: PTX ISA, "Matrix Fragments for mma".
template <class T, int kK>
void multiply(float (&d)[4], const uint32_t* a, const uint32_t* b) {
  using emulated::shown;
  const int lane = emulated::lane();
  for (int i = 0; i < kK / 4; ++i) shown(i)[lane] = a[i];
  for (int i = 0; i < kK / 8; ++i) shown(4 + i)[lane] = b[i];
  emulated::warp_barrier();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
    for (int k = 0; k < kK; ++k) {
      const uint64_t left = shown(row / 8 + 2 * (k / 8))[row % 8 * 4 + k % 8 / 2];
      const uint64_t right = shown(4 + k / 8)[column * 4 + k % 8 / 2];
      d[i] += value_of<T>(left, k % 2) * value_of<T>(right, k % 2);
    }
  }
  emulated::warp_barrier();
}

template <class T>
void mma_k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t b[2] = {b0, b1};
  multiply<T, 16>(d, a, b);
}

template <class T>
void mma_k16_first(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  for (float& value : d) value = 0.f;
  mma_k16<T>(d, a, b0, b1);
}

template <class T>
void mma_k8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  const uint32_t a[2] = {a0, a1};
  multiply<T, 8>(d, a, &b);
}

inline void load(uint32_t (&r)[4], const void* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) std::abort();
  const int lane = emulated::lane();
  emulated::shown(0)[lane] = reinterpret_cast<uint64_t>(row);
  emulated::warp_barrier();
  for (int m = 0; m < 4; ++m) {
    const auto element = [&](int i, int j) -> uint32_t {
      return reinterpret_cast<const uint16_t*>(emulated::shown(0)[8 * m + i])[j];
    };
    const int i = lane / 4, j = 2 * (lane % 4);
    r[m] = transposed ? element(j, i) | element(j + 1, i) << 16
                      : element(i, j) | element(i, j + 1) << 16;
  }
  emulated::warp_barrier();
}

inline void load_matrices(uint32_t (&r)[4], const void* row) { load(r, row, false); }
inline void load_transposed(uint32_t (&r)[4], const void* row) { load(r, row, true); }

}  // namespace fusedops
