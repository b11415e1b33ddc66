// The operators of scans: how an element becomes a state, how states combine, what is written.
// combine(a, b) is associative, a comes first; pad() is a value that changes no later state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "common/vec.cuh"

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
  using In = T;
  using State = ScanState<T>;
  using Out = ScanOut<T>;
  static constexpr int kVec = kScanVec<In, Out, false>;
  static constexpr bool kIndexed = false;
  static __device__ State identity() { return State(0); }
  static __device__ In pad() { return static_cast<In>(0.0f); }
  static __device__ State lift(In x, int64_t) { return scan_state(x); }
  static __device__ State combine(State a, State b) { return a + b; }
  static __device__ Out value(State s) { return scan_out<T>(s); }
};

template <class T>
struct ProdScan {
  using In = T;
  using State = ScanState<T>;
  using Out = ScanOut<T>;
  static constexpr int kVec = kScanVec<In, Out, false>;
  static constexpr bool kIndexed = false;
  static __device__ State identity() { return State(1); }
  static __device__ In pad() { return static_cast<In>(1.0f); }
  static __device__ State lift(In x, int64_t) { return scan_state(x); }
  static __device__ State combine(State a, State b) { return a * b; }
  static __device__ Out value(State s) { return scan_out<T>(s); }
};

// The largest or smallest value so far and where it stands: the last of equal ones, and a NaN wins
// over every number, as in torch.cummax.
template <class T, bool kMax>
struct ExtremeScan {
  using In = T;
  using Out = T;
  using Value = std::conditional_t<kIsInteger<T>, T, Compute<T>>;
  struct State {
    int64_t index;
    Value value;
  };
  static constexpr bool kIndexed = true;
  static constexpr int kVec = kScanVec<In, Out, true>;

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
  static __device__ State lift(In x, int64_t index) {
    if constexpr (kIsInteger<T>) {
      return {index, x};
    } else {
      return {index, to_compute(x)};
    }
  }
  static __device__ State combine(const State& a, const State& b) {
    bool later = kMax ? b.value >= a.value : b.value <= a.value;
    if constexpr (!kIsInteger<T>) later = b.value != b.value || (a.value == a.value && later);
    return later ? b : a;
  }
  static __device__ Out value(const State& s) {
    if constexpr (kIsInteger<T>) {
      return s.value;
    } else {
      return from_compute<Out>(s.value);
    }
  }
};

}  // namespace fusedops
