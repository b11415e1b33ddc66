// A loop over groups of a thread's registers that is not unrolled.
#pragma once

#include <cute/numeric/integral_constant.hpp>

namespace fusedops {

// fn(Int<i>) for i in [kBegin, kEnd).
template <int kBegin, int kEnd, class Fn>
__device__ __forceinline__ void with_index(int i, Fn&& fn) {
  constexpr int kMiddle = (kBegin + kEnd) / 2;
  if constexpr (kEnd - kBegin > 1) {
    if (i < kMiddle) return with_index<kBegin, kMiddle>(i, fn);
    return with_index<kMiddle, kEnd>(i, fn);
  } else {
    asm volatile("");  // a branch, not selects of both sides
    fn(cute::Int<kBegin>{});
  }
}

// fn(values, i) for i in [kBegin, kEnd), where values are the kValues numbers from place(Int<i>)
// on: they move to registers of their own and back. NOTE: by unrolled code that warps run through
// once they wait for instructions most of the time.
template <int kBegin, int kEnd, int kValues, class Place, class Fn>
__device__ __forceinline__ void for_each_rolled(Place place, Fn&& fn) {
#pragma unroll 1
  for (int i = kBegin; i < kEnd; ++i) {
    float v[kValues];
    with_index<kBegin, kEnd>(i, [&](auto index) {
      const float* from = place(index);
#pragma unroll
      for (int e = 0; e < kValues; ++e) v[e] = from[e];
    });
    fn(v, i);
    with_index<kBegin, kEnd>(i, [&](auto index) {
      float* to = place(index);
#pragma unroll
      for (int e = 0; e < kValues; ++e) to[e] = v[e];
    });
  }
}

}  // namespace fusedops
