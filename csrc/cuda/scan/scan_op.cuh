// The operators of scans: how an element becomes a state, how states combine, what is written.
// lift(x, position) takes an element or its compute type; combine(a, b) is associative, a comes
// first; pad() is a value that changes no later state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "csrc/common/device/cache_hint.cuh"
#include "csrc/common/device/vec.cuh"

namespace fusedops {

template <class V>
struct Pieces {
  static_assert(sizeof(V) % 4 == 0);
  uint32_t piece[sizeof(V) / 4];
};

// A vector on its way: whole words, so that 16-bit elements do not become a register each where
// several paths load it.
template <class V>
struct alignas(sizeof(V)) Packed {
  using Word = std::conditional_t<sizeof(V) % 4 == 0, uint32_t,
                                  std::conditional_t<sizeof(V) % 2 == 0, uint16_t, uint8_t>>;
  Word word[sizeof(V) / sizeof(Word)];
};
template <class V>
__device__ __forceinline__ Packed<V> pack(const V& v) {
  return __builtin_bit_cast(Packed<V>, v);
}
template <class V>
__device__ __forceinline__ V unpack(const Packed<V>& words) {
  return __builtin_bit_cast(V, words);
}
// bfloat16 as float, one instruction for each.
template <int N>
__device__ __forceinline__ auto unpack(const Packed<Vec<__nv_bfloat16, N>>& words) {
  struct {
    float value[N];
  } v;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const uint32_t word = words.word[i / 2];
    v.value[i] = __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
  }
  return v;
}

// Unpacked again from here on: kept apart, 16-bit elements would take a register each.
template <class V>
__device__ __forceinline__ void stay_packed(Packed<V>& words) {
  if constexpr (sizeof(words.word[0]) == 4) {
#pragma unroll
    for (uint32_t& word : words.word) asm volatile("" : "+r"(word));
  }
}

// Stores a vector to global memory in the widest accesses. In PTX, because the compiler takes
// vectors of 16-bit elements apart where another path stores them one by one.
template <class V>
__device__ __forceinline__ void store_whole(void* to, const V& v) {
  if constexpr (sizeof(V) % 16 == 0) {
    struct Words {
      uint4 part[sizeof(V) / 16];
    };
    const auto words = __builtin_bit_cast(Words, v);
#pragma unroll
    for (size_t i = 0; i < sizeof(V) / 16; ++i) {
      const uint4& w = words.part[i];
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(static_cast<uint4*>(to) + i),
                   "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w)
                   : "memory");
    }
  } else if constexpr (sizeof(V) == 8) {
    const auto w = __builtin_bit_cast(uint2, v);
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(w.x), "r"(w.y) : "memory");
  } else {
    *static_cast<Packed<V>*>(to) = pack(v);
  }
}

template <class T>
inline constexpr bool kIsInteger = std::is_integral_v<T>;

// Sums and products: fp32 for 16-bit types; integers modulo 2^64, as in torch.
template <class T>
using ScanState = std::conditional_t<kIsInteger<T>, uint64_t, Compute<T>>;
template <class T>
using ScanOut = std::conditional_t<kIsInteger<T>, int64_t, T>;

template <class T>
__device__ __forceinline__ ScanState<T> scan_state(T x) {
  if constexpr (kIsInteger<T>) {
    return static_cast<uint64_t>(static_cast<int64_t>(x));
  } else {
    return to_compute(x);
  }
}

template <class T>
__device__ __forceinline__ ScanOut<T> scan_out(ScanState<T> s) {
  if constexpr (kIsInteger<T>) {
    return static_cast<int64_t>(s);
  } else {
    return from_compute<T>(s);
  }
}

// Elements of a vector: 16 bytes of the widest of what is read and written.
template <class In, class Out, bool kIndexed>
inline constexpr int kScanVec =
    16 / std::max({sizeof(In), sizeof(Out), kIndexed ? sizeof(int64_t) : size_t{1}});

template <class T>
struct SumScan {
  using Narrow = SumScan;
  using In = T;
  using State = ScanState<T>;
  using Out = ScanOut<T>;
  static constexpr int kVec = kScanVec<In, Out, false>;
  static constexpr bool kIndexed = false;
  static __device__ State identity() { return State(0); }
  static __device__ In pad() { return static_cast<In>(0.0f); }
  static __device__ State lift(auto x, int64_t) { return scan_state(x); }
  static __device__ State combine(State a, State b) { return a + b; }
  static __device__ Out value(State s) { return scan_out<T>(s); }
};

template <class T>
struct ProdScan {
  using Narrow = ProdScan;
  using In = T;
  using State = ScanState<T>;
  using Out = ScanOut<T>;
  static constexpr int kVec = kScanVec<In, Out, false>;
  static constexpr bool kIndexed = false;
  static __device__ State identity() { return State(1); }
  static __device__ In pad() { return static_cast<In>(1.0f); }
  static __device__ State lift(auto x, int64_t) { return scan_state(x); }
  static __device__ State combine(State a, State b) { return a * b; }
  static __device__ Out value(State s) { return scan_out<T>(s); }
};

// The largest or smallest value so far and where it stands: the last of equal ones, and a NaN wins
// over every number, as in torch.cummax. Narrow: for rows of less than 2^31 elements.
template <class T, bool kMax, class Index = int64_t>
struct ExtremeScan {
  using Narrow = ExtremeScan<T, kMax, int32_t>;
  using In = T;
  using Out = T;
  using Value =
      std::conditional_t<kIsInteger<T>, std::conditional_t<sizeof(T) < 4, int32_t, T>, Compute<T>>;
  struct State {
    Index index;
    Value value;
  };
  static constexpr bool kIndexed = true;
  static constexpr int kVec =
      sizeof(Index) == 8 ? kScanVec<In, Out, true> : std::min<int>(8, 16 / sizeof(T));

  static __device__ Value worst() {
    if constexpr (kIsInteger<T>) {
      return kMax ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
    } else {
      const Value infinity = static_cast<Value>(__int_as_float(0x7f800000));
      return kMax ? -infinity : infinity;
    }
  }
  static __device__ State identity() { return {0, worst()}; }
  static __device__ In pad() {
    if constexpr (kIsInteger<T>) {
      return worst();
    } else {
      return from_compute<In>(worst());
    }
  }
  static __device__ State lift(auto x, int64_t index) {
    if constexpr (kIsInteger<T>) {
      return {static_cast<Index>(index), x};
    } else {
      return {static_cast<Index>(index), to_compute(x)};
    }
  }
  static __device__ State combine(const State& a, const State& b) {
    bool later = kMax ? b.value >= a.value : b.value <= a.value;
    // NOTE: no && or ||, which become branches
    if constexpr (!kIsInteger<T>) later = (b.value != b.value) | ((a.value == a.value) & later);
    return {later ? b.index : a.index, later ? b.value : a.value};
  }
  static __device__ Out value(const State& s) {
    if constexpr (kIsInteger<T>) {
      return static_cast<Out>(s.value);
    } else {
      return from_compute<Out>(s.value);
    }
  }
};

}  // namespace fusedops
