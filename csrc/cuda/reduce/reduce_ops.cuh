// The reductions as functors. Every one has
//   Acc, identity()       the neutral accumulator
//   combine(acc, other)   other holds other elements; the caller keeps the order fixed
//   Running, start()      what a thread accumulates fewer than 2^31 elements in
//   absorb<N>(running, v, position, step)   N elements in order, `step` positions apart
//   settle(running, base, step)   its Acc; a position p is the logical index base + p * step
//   moved(running, base, step)    the same, with positions base + p * step; indexed ones only
//   Narrow, Wide          what finish<Out>() makes: the input's type, or the compute type
//   kSecond               whether second<Out>() makes a second result
//   kMasked, kIndexed     whether it wants masked elements; whether it reads positions
#pragma once

#include <math_constants.h>

#include <limits>
#include <type_traits>

#include "csrc/common/device/vec.cuh"
#include "csrc/cuda/reduce/reduce_args.h"

namespace fusedops {

// Elements as the arithmetic sees them: compute type for floating ones, int32 or int64.
template <class T>
struct KeyOf {
  using type = int;
};
template <>
struct KeyOf<__half> {
  using type = float;
};
template <>
struct KeyOf<__nv_bfloat16> {
  using type = float;
};
template <>
struct KeyOf<float> {
  using type = float;
};
template <>
struct KeyOf<double> {
  using type = double;
};
template <>
struct KeyOf<int64_t> {
  using type = int64_t;
};
template <class T>
using Key = typename KeyOf<T>::type;

template <class T>
inline constexpr bool kIsFloating = __is_same(Key<T>, float) || __is_same(Key<T>, double);

// What sums and products are made in.
template <class T, bool floating = kIsFloating<T>>
struct SumOf {
  using type = Key<T>;
};
template <class T>
struct SumOf<T, false> {
  using type = int64_t;
};
template <class T>
using SumType = typename SumOf<T>::type;

template <class T>
__device__ __forceinline__ Key<T> to_key(T x) {
  if constexpr (kIsFloating<T>) {
    return to_compute(x);
  } else {
    return static_cast<Key<T>>(x);
  }
}

// What flipping the sign bit (all bits of an integer) does to a key.
template <class K>
__device__ __forceinline__ K flipped(K x) {
  if constexpr (__is_same(K, float) || __is_same(K, double)) {
    return -x;
  } else {
    return ~x;
  }
}

template <class K>
__device__ __forceinline__ K lowest_key() {
  if constexpr (__is_same(K, float)) {
    return -CUDART_INF_F;
  } else if constexpr (__is_same(K, double)) {
    return -CUDART_INF;
  } else {
    return std::numeric_limits<K>::lowest();
  }
}

// The larger one; NaN if either is.
__device__ __forceinline__ float larger(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
__device__ __forceinline__ double larger(double a, double b) { return a > b || a != a ? a : b; }
__device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }
__device__ __forceinline__ int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// NOTE: __expf without its care for denormal results, which add nothing to a sum of at least 1.
__device__ __forceinline__ float fast_exp(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634f));
  return result;
}
__device__ __forceinline__ double fast_exp(double x) { return exp(x); }
__device__ __forceinline__ float fast_divide(float a, float b) { return __fdividef(a, b); }
__device__ __forceinline__ double fast_divide(double a, double b) { return a / b; }

// A balanced sum of N values.
template <int N, class C>
__device__ __forceinline__ C tree_sum(const C* v) {
  if constexpr (N == 1) {
    return v[0];
  } else {
    return tree_sum<N / 2>(v) + tree_sum<N - N / 2>(v + N / 2);
  }
}

// Where threads and blocks accumulate alike.
template <class Op, class A>
struct SettledReduction {
  using Running = A;
  __device__ static A start(const ReduceOptions& options) { return Op::identity(options); }
  __device__ static A settle(const A& running, int64_t, int64_t) { return running; }
};

// Sum of x or |x|, or of squares.
template <class T, bool kSquare>
struct ReduceSum : SettledReduction<ReduceSum<T, kSquare>, SumType<T>> {
  using Element = T;
  using Acc = SumType<T>;
  using Wide = Acc;
  using Narrow = std::conditional_t<kIsFloating<T>, T, Acc>;
  static constexpr bool kSecond = false;
  static constexpr bool kMasked = !kSquare, kIndexed = false;

  __device__ static Acc identity(const ReduceOptions&) { return Acc{0}; }

  template <int N>
  __device__ static void absorb(Acc& acc, const Key<T> (&v)[N], int, int, const ReduceOptions&) {
    Acc terms[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      terms[i] = kSquare ? static_cast<Acc>(v[i]) * static_cast<Acc>(v[i]) : Acc{v[i]};
    }
    acc += tree_sum<N>(terms);
  }
  __device__ static void combine(Acc& acc, const Acc& other, const ReduceOptions&) { acc += other; }

  template <class Out>
  __device__ static Out finish(const Acc& acc, const ReduceOptions& options) {
    if constexpr (kIsFloating<T>) {
      const Acc value = acc * static_cast<Acc>(options.scale);
      return from_compute<Out>(kSquare && options.root ? sqrt(value) : value);
    } else {
      return acc;
    }
  }
};

template <class T>
struct ReduceProd : SettledReduction<ReduceProd<T>, SumType<T>> {
  using Element = T;
  using Acc = SumType<T>;
  using Wide = Acc;
  using Narrow = std::conditional_t<kIsFloating<T>, T, Acc>;
  static constexpr bool kSecond = false;
  static constexpr bool kMasked = false, kIndexed = false;

  __device__ static Acc identity(const ReduceOptions&) { return Acc{1}; }

  template <int N>
  __device__ static void absorb(Acc& acc, const Key<T> (&v)[N], int, int,
                                const ReduceOptions& options) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      acc *= options.nonzero && v[i] == Key<T>{0} ? Acc{1} : static_cast<Acc>(v[i]);
    }
  }
  __device__ static void combine(Acc& acc, const Acc& other, const ReduceOptions&) { acc *= other; }

  template <class Out>
  __device__ static Out finish(const Acc& acc, const ReduceOptions&) {
    if constexpr (kIsFloating<T>) {
      return from_compute<Out>(acc);
    } else {
      return acc;
    }
  }
};

template <class K>
struct CountedKey {
  K value, count;
};
template <class T, bool kCount>
using ExtremumAcc = std::conditional_t<kCount, CountedKey<Key<T>>, Key<T>>;

// The largest masked element; NaN wins. kCount: and how many elements equal it.
template <class T, bool kCount>
struct ReduceExtremum : SettledReduction<ReduceExtremum<T, kCount>, ExtremumAcc<T, kCount>> {
  using Element = T;
  using Acc = ExtremumAcc<T, kCount>;
  using Wide = std::conditional_t<kIsFloating<T>, Key<T>, T>;
  using Narrow = T;
  static constexpr bool kSecond = kCount;
  static constexpr bool kMasked = true, kIndexed = false;

  __device__ static Acc identity(const ReduceOptions&) {
    if constexpr (kCount) {
      return {lowest_key<Key<T>>(), 0};
    } else {
      return lowest_key<Key<T>>();
    }
  }

  template <int N>
  __device__ static void absorb(Acc& acc, const Key<T> (&v)[N], int, int,
                                const ReduceOptions& options) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (kCount) {
        combine(acc, {v[i], 1}, options);
      } else {
        acc = larger(acc, v[i]);
      }
    }
  }

  __device__ static void combine(Acc& acc, const Acc& other, const ReduceOptions&) {
    if constexpr (kCount) {
      const Key<T> best = larger(acc.value, other.value);
      acc.count = (acc.value == best ? acc.count : 0) + (other.value == best ? other.count : 0);
      acc.value = best;
    } else {
      acc = larger(acc, other);
    }
  }

  template <class Out>
  __device__ static Out finish(const Acc& acc, const ReduceOptions& options) {
    Key<T> value;
    if constexpr (kCount) {
      value = acc.value;
    } else {
      value = acc;
    }
    if (options.flip) value = flipped(value);
    if constexpr (kIsFloating<T>) {
      return from_compute<Out>(value);
    } else {
      return static_cast<Out>(value);
    }
  }
  template <class Out>
  __device__ static Key<T> second(const Acc& acc, const ReduceOptions&) {
    return acc.count;
  }
};

// The index of the first largest masked element; the first NaN wins.
template <class T>
struct ReduceArg {
  // NOTE: eight bytes for the value, too, so that nothing lies between those that are written.
  struct Acc {
    int64_t index;
    std::conditional_t<kIsFloating<T>, double, int64_t> value;
  };
  struct Running {
    int position;
    Key<T> value;
  };
  using Element = T;
  using Wide = int64_t;
  using Narrow = int64_t;
  static constexpr bool kSecond = false;
  static constexpr bool kMasked = true, kIndexed = true;
  // No element was larger than the lowest value there is: all equal it, and the first is the first.
  static constexpr int64_t kNowhere = std::numeric_limits<int64_t>::max();

  __device__ static Acc identity(const ReduceOptions&) { return {kNowhere, lowest_key<Key<T>>()}; }
  __device__ static Running start(const ReduceOptions&) { return {-1, lowest_key<Key<T>>()}; }

  template <int N>
  __device__ static void absorb(Running& acc, const Key<T> (&v)[N], int position, int step,
                                const ReduceOptions&) {
    // NOTE: the positions of one thread increase; what equals the best comes after it.
    int best = -1;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (!(v[i] <= acc.value) && acc.value == acc.value) {
        acc.value = v[i];
        best = i;
      }
    }
    if (best >= 0) acc.position = position + best * step;
  }

  __device__ static Running moved(const Running& acc, int base, int step) {
    return {acc.position < 0 ? -1 : base + acc.position * step, acc.value};
  }
  __device__ static Acc settle(const Running& acc, int64_t base, int64_t step) {
    return {acc.position < 0 ? kNowhere : base + acc.position * step, acc.value};
  }

  __device__ static void combine(Acc& acc, const Acc& other, const ReduceOptions&) {
    const bool acc_nan = acc.value != acc.value, other_nan = other.value != other.value;
    const bool tie = acc.value == other.value || (acc_nan && other_nan);
    const bool better =
        tie ? other.index < acc.index : !acc_nan && (other_nan || other.value > acc.value);
    if (better) acc = other;
  }

  template <class Out>
  __device__ static int64_t finish(const Acc& acc, const ReduceOptions&) {
    return acc.index == kNowhere ? 0 : acc.index;
  }
};

// Elements of `sizeof(T)` bytes whose kept bits are not zero. Narrow: whether count >= total.
template <class T>
struct ReduceCount {
  using Element = T;
  using Acc = int64_t;
  using Running = int;
  using Wide = int64_t;
  using Narrow = bool;
  static constexpr bool kSecond = false;
  static constexpr bool kMasked = true, kIndexed = false;

  __device__ static Acc identity(const ReduceOptions&) { return 0; }
  __device__ static Running start(const ReduceOptions&) { return 0; }
  __device__ static Acc settle(Running running, int64_t, int64_t) { return running; }

  template <int N>
  __device__ static void absorb(Running& acc, const Key<T> (&v)[N], int, int,
                                const ReduceOptions&) {
#pragma unroll
    for (int i = 0; i < N; ++i) acc += v[i] != 0;
  }
  __device__ static void combine(Acc& acc, const Acc& other, const ReduceOptions&) { acc += other; }

  template <class Out>
  __device__ static Out finish(const Acc& acc, const ReduceOptions& options) {
    if constexpr (__is_same(Out, bool)) {
      return acc >= options.total;
    } else {
      return acc;
    }
  }
};

template <class C>
struct MomentsAcc {
  C mean, squares, count;
};

// Variance by Welford's method over vectors (Chan, Golub and LeVeque 1979 for the merge). The
// second result is the mean. scale: 1 / (elements - correction).
template <class T>
struct ReduceMoments : SettledReduction<ReduceMoments<T>, MomentsAcc<Key<T>>> {
  using C = Key<T>;
  using Acc = MomentsAcc<C>;
  using Element = T;
  using Wide = C;
  using Narrow = T;
  static constexpr bool kSecond = true;
  static constexpr bool kMasked = false, kIndexed = false;

  __device__ static Acc identity(const ReduceOptions&) { return {0, 0, 0}; }

  template <int N>
  __device__ static void absorb(Acc& acc, const C (&v)[N], int, int, const ReduceOptions& options) {
    const C mean = tree_sum<N>(v) * (C{1} / N);
    C squares[N];
#pragma unroll
    for (int i = 0; i < N; ++i) squares[i] = (v[i] - mean) * (v[i] - mean);
    combine(acc, {mean, tree_sum<N>(squares), N}, options);
  }

  __device__ static void combine(Acc& acc, const Acc& other, const ReduceOptions&) {
    const C count = acc.count + other.count;
    if (other.count == 0) return;
    const C share = fast_divide(other.count, count), delta = other.mean - acc.mean;
    acc.mean += delta * share;
    acc.squares += other.squares + delta * (acc.count * share) * delta;
    acc.count = count;
  }

  template <class Out>
  __device__ static Out finish(const Acc& acc, const ReduceOptions& options) {
    const C value = acc.squares * static_cast<C>(options.scale);
    return from_compute<Out>(options.root ? sqrt(value) : value);
  }
  template <class Out>
  __device__ static Out second(const Acc& acc, const ReduceOptions&) {
    return from_compute<Out>(acc.mean);
  }
};

template <class C>
struct LogsumexpAcc {
  C largest, sum;  // of exp(x - base(largest))
};

// log(sum(exp(x))), rescaled by the largest element so far.
template <class T>
struct ReduceLogsumexp : SettledReduction<ReduceLogsumexp<T>, LogsumexpAcc<Key<T>>> {
  using C = Key<T>;
  using Acc = LogsumexpAcc<C>;
  using Element = T;
  using Wide = C;
  using Narrow = T;
  static constexpr bool kSecond = false;
  static constexpr bool kMasked = false, kIndexed = false;

  __device__ static Acc identity(const ReduceOptions&) { return {lowest_key<C>(), 0}; }

  // An infinite largest element is no base: inf - inf.
  __device__ static C base(C largest) { return isinf(largest) ? C{0} : largest; }

  // What a sum with the old base is in the new one.
  __device__ static C rescaled(const Acc& acc, C largest) {
    return acc.largest == largest ? acc.sum : acc.sum * fast_exp(acc.largest - base(largest));
  }

  template <int N>
  __device__ static void absorb(Acc& acc, const C (&v)[N], int, int, const ReduceOptions&) {
    C largest = acc.largest;
#pragma unroll
    for (int i = 0; i < N; ++i) largest = larger(largest, v[i]);
    const C shift = base(largest);
    C terms[N];
#pragma unroll
    for (int i = 0; i < N; ++i) terms[i] = fast_exp(v[i] - shift);
    acc.sum = rescaled(acc, largest) + tree_sum<N>(terms);
    acc.largest = largest;
  }

  __device__ static void combine(Acc& acc, const Acc& other, const ReduceOptions&) {
    const C largest = larger(acc.largest, other.largest);
    acc.sum = rescaled(acc, largest) + rescaled(other, largest);
    acc.largest = largest;
  }

  template <class Out>
  __device__ static Out finish(const Acc& acc, const ReduceOptions&) {
    return from_compute<Out>(log(acc.sum) + base(acc.largest));
  }
};

}  // namespace fusedops
