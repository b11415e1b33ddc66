// Sums and other folds over a warp or a block, for ops outside of this library. The order is fixed,
// so that two runs agree bit by bit.
#pragma once

namespace fusedops {

struct Add {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};

// fn over the values of a warp's 32 lanes, in every lane. fn: associative and commutative.
template <class T, class Fn = Add>
__device__ __forceinline__ T warp_reduce(T value, Fn fn = {}) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) {
    value = fn(value, __shfl_xor_sync(~0u, value, width));
  }
  return value;
}

// fn over the values of a block's kThreads threads, in every thread. slots: kThreads / 32 values in
// shared memory, free again when this returns.
template <int kThreads, class T, class Fn = Add>
__device__ __forceinline__ T block_reduce(T value, T* slots, Fn fn = {}) {
  static_assert(kThreads % 32 == 0 && kThreads <= 1024);
  constexpr int kWarps = kThreads / 32;
  value = warp_reduce(value, fn);
  if constexpr (kWarps > 1) {
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
    __syncthreads();
    value = slots[0];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) value = fn(value, slots[warp]);
    __syncthreads();
  }
  return value;
}

}  // namespace fusedops
