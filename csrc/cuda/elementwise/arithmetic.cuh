// Functors of add, fma, square, square's gradient and relu for the elementwise engine. Floating
// types compute in fp32 (fp64) with one rounding; integers wrap around.
#pragma once

#include "csrc/common/device/activation.cuh"
#include "csrc/cuda/elementwise/elementwise.cuh"

namespace fusedops {

// The type that integers compute in: unsigned where small ones would promote to int and overflow.
template <class T>
using IntegerCompute = std::conditional_t<std::is_unsigned_v<T> && sizeof(T) < 4, uint32_t, T>;

// out = Fn(in...), element by element.
template <class T, int kInputCount, class Fn>
struct Pointwise {
  static constexpr int kInputs = kInputCount;
  static constexpr unsigned kPerColumn = 0;
  static constexpr bool kLight = true;

  template <int kN>
  __device__ __forceinline__ Vec<T, kN> operator()(const Vec<T, kN> (&in)[kInputs], ChunkAt) const {
    std::conditional_t<std::is_integral_v<T>, T, Compute<T>> out[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      out[i] = Fn::apply(pick(in, 0, i), pick(in, 1, i), pick(in, 2, i));
    }
    return rounded<T>(out);
  }
  template <class Use>
  __device__ __forceinline__ void resolve(Use&& use) const {
    use(*this);
  }

 private:
  template <int kN>
  __device__ __forceinline__ static auto pick(const Vec<T, kN> (&in)[kInputs], int k, int i) {
    const T value = in[k < kInputs ? k : 0].value[i];
    if constexpr (std::is_integral_v<T>) {
      return static_cast<IntegerCompute<T>>(value);
    } else {
      return to_compute(value);
    }
  }
};

struct AddFn {
  template <class C>
  __device__ static C apply(C x, C y, C) {
    return x + y;
  }
};
struct FmaFn {  // a, x, b
  template <class C>
  __device__ static C apply(C a, C x, C b) {
    return a * x + b;
  }
};
struct SquareFn {
  template <class C>
  __device__ static C apply(C x, C, C) {
    return x * x;
  }
};
struct SquareBackwardFn {  // dy, x
  template <class C>
  __device__ static C apply(C dy, C x, C) {
    return C(2) * x * dy;
  }
};
struct ReluFn {
  template <class C>
  __device__ static C apply(C x, C, C) {
    if constexpr (std::is_integral_v<C>) {
      return x > C(0) ? x : C(0);
    } else {
      return relu(x);
    }
  }
};

}  // namespace fusedops
