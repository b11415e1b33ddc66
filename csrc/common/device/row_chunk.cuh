// A chunk of a row in registers: 16 bytes of 16-bit elements stay two to a register.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>

#include "csrc/common/device/cache_hint.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/common/row_chunk.h"

namespace fusedops {

// NaN loses.
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }

// Sums of a chunk's elements side by side: independent, but few.
template <int kVec>
inline constexpr int kSums = kVec < 4 ? kVec : 4;

// Pair by pair: a short chain.
template <class C, int kCount>
__device__ __forceinline__ C sum_of(C (&value)[kCount]) {
#pragma unroll
  for (int width = kCount / 2; width > 0; width /= 2) {
#pragma unroll
    for (int i = 0; i < width; ++i) value[i] += value[i + width];
  }
  return value[0];
}

// A chunk in registers, as memory holds it: 16-bit elements two to a register.
template <class T, int kVec>
struct Packed {
  static constexpr int kWords = sizeof(T) * kVec / 4;
  unsigned word[kWords];

  __device__ __forceinline__ Compute<T> at(int e) const {
    if constexpr (sizeof(T) == 8) {
      return __hiloint2double(static_cast<int>(word[2 * e + 1]), static_cast<int>(word[2 * e]));
    } else if constexpr (sizeof(T) == 4) {
      return __uint_as_float(word[e]);
    } else if constexpr (__is_same(T, __nv_bfloat16)) {
      return __uint_as_float(e % 2 == 0 ? word[e / 2] << 16 : word[e / 2] & 0xffff0000u);
    } else {
      return __half2float(
          __ushort_as_half(static_cast<unsigned short>(word[e / 2] >> (e % 2 * 16))));
    }
  }
  // The larger of both in every element of word w; NaN loses.
  __device__ __forceinline__ void raise(int w, const Packed& other) {
    if constexpr (sizeof(T) == 2) {
      using Two = std::conditional_t<__is_same(T, __half), __half2, __nv_bfloat162>;
      Two mine, theirs;
      memcpy(&mine, &word[w], 4);
      memcpy(&theirs, &other.word[w], 4);
      mine = __hmax2(mine, theirs);
      memcpy(&word[w], &mine, 4);
    } else if constexpr (sizeof(T) == 4) {
      word[w] = __float_as_uint(larger(at(w), other.at(w)));
    } else if (w % 2 == 0) {
      const double top = larger(at(w / 2), other.at(w / 2));
      word[w] = static_cast<unsigned>(__double2loint(top));
      word[w + 1] = static_cast<unsigned>(__double2hiint(top));
    }
  }
  // Zero outside of the elements [lo, hi).
  __device__ __forceinline__ void keep(int lo, int hi) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if constexpr (sizeof(T) == 2) {
        const unsigned low = 2 * w >= lo && 2 * w < hi ? 0xffffu : 0;
        const unsigned high = 2 * w + 1 >= lo && 2 * w + 1 < hi ? 0xffff0000u : 0;
        word[w] &= low | high;
      } else {
        const int e = w / static_cast<int>(sizeof(T) / 4);
        word[w] = e >= lo && e < hi ? word[w] : 0;
      }
    }
  }
  // NOTE: the compiler would rather keep every element converted, at twice the registers.
  __device__ __forceinline__ void hold() {
#pragma unroll
    for (int w = 0; w < kWords; ++w) asm volatile("" : "+r"(word[w]));
  }
};

// Rounds; two 16-bit elements at a time.
template <class O, int kVec, class C>
__device__ __forceinline__ Packed<O, kVec> pack(const C (&value)[kVec]) {
  Packed<O, kVec> out;
#pragma unroll
  for (int w = 0; w < Packed<O, kVec>::kWords; ++w) {
    if constexpr (sizeof(O) == 8) {
      out.word[w] = static_cast<unsigned>(w % 2 == 0 ? __double2loint(value[w / 2])
                                                     : __double2hiint(value[w / 2]));
    } else if constexpr (sizeof(O) == 4) {
      out.word[w] = __float_as_uint(value[w]);
    } else if constexpr (__is_same(O, __nv_bfloat16)) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(value[2 * w], value[2 * w + 1]);
      memcpy(&out.word[w], &two, 4);
    } else {
      const __half2 two = __floats2half2_rn(value[2 * w], value[2 * w + 1]);
      memcpy(&out.word[w], &two, 4);
    }
  }
  return out;
}

// NOTE: an assignment of 16-bit elements would become as many 16-bit accesses.
template <class T, int kVec>
__device__ __forceinline__ Packed<T, kVec> load_packed(const T* from) {
  using P = Packed<T, kVec>;
  P out;
  if constexpr (P::kWords % 4 == 0) {
#pragma unroll
    for (int w = 0; w < P::kWords; w += 4) {
      const uint4 four = reinterpret_cast<const uint4*>(from)[w / 4];
      out.word[w] = four.x;
      out.word[w + 1] = four.y;
      out.word[w + 2] = four.z;
      out.word[w + 3] = four.w;
    }
  } else if constexpr (P::kWords == 2) {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    out.word[0] = two.x;
    out.word[1] = two.y;
  } else {
    static_assert(P::kWords == 1);
    out.word[0] = *reinterpret_cast<const unsigned*>(from);
  }
  return out;
}

// NOTE: in PTX, since the compiler splits a store of 16 bytes into four.
template <class T, int kVec>
__device__ __forceinline__ void store_packed(T* to, const Packed<T, kVec>& value) {
  using P = Packed<T, kVec>;
  unsigned* const words = reinterpret_cast<unsigned*>(to);
  if constexpr (P::kWords % 4 == 0) {
#pragma unroll
    for (int w = 0; w < P::kWords; w += 4) {
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(words + w), "r"(value.word[w]),
                   "r"(value.word[w + 1]), "r"(value.word[w + 2]), "r"(value.word[w + 3])
                   : "memory");
    }
  } else if constexpr (P::kWords == 2) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(words), "r"(value.word[0]),
                 "r"(value.word[1])
                 : "memory");
  } else {
    static_assert(P::kWords == 1);
    *words = value.word[0];
  }
}

template <class T, int kVec, int kCount>
__device__ __forceinline__ void hold(Packed<T, kVec> (&chunk)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) chunk[i].hold();
}

template <class T, int kVec>
__device__ __forceinline__ Packed<T, kVec> splat(T value) {
  Compute<T> all[kVec];
#pragma unroll
  for (int e = 0; e < kVec; ++e) all[e] = to_compute(value);
  return pack<T>(all);
}

// Largest of a thread's values. Halves two at a time, as they are.
template <class T, int kVec, int kMax, class C = Compute<T>>
__device__ __forceinline__ C largest(const Packed<T, kVec> (&x)[kMax], int count) {
  constexpr int kWords = Packed<T, kVec>::kWords;
  Packed<T, kVec> top = x[0];
#pragma unroll
  for (int i = 1; i < kMax; ++i) {
    if (i >= count) break;
#pragma unroll
    for (int w = 0; w < kWords; ++w) top.raise(w, x[i]);
  }
  C value = top.at(0);
#pragma unroll
  for (int e = 1; e < kVec; ++e) value = larger(value, top.at(e));
  return value;
}

// Joins the values of `lanes` neighbouring lanes, a power of two.
template <class C, class Fn>
__device__ __forceinline__ C fold_lanes(C value, int lanes, Fn fn) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) {
    const C joined = fn(value, __shfl_xor_sync(~0u, value, width));
    value = width < lanes ? joined : value;
  }
  return value;
}

}  // namespace fusedops
