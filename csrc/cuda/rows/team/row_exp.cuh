// Exponentials relative to a row's maximum, as exact as the output can show.
//
// Half outputs take the hardware's 2^x of (x - top) log2(e), which is exact at the maximum; what is
// left is about 2^-22.
#pragma once

#include <type_traits>

#include "csrc/common/device/activation.cuh"
#include "csrc/cuda/rows/team/row_team.cuh"

namespace fusedops {

__device__ __forceinline__ float standard_log(float x) { return logf(x); }
__device__ __forceinline__ double standard_log(double x) { return log(x); }

template <class O>
inline constexpr bool kFastExp = sizeof(O) == 2;

// A row of -inf has no maximum to subtract.
template <class C>
__device__ __forceinline__ C finite_top(C top) {
  return top == -static_cast<C>(INFINITY) ? C{0} : top;
}

// log2(e), with which 2^(x factor - top factor) is exp(x - top). Beyond 2^30 the rounding of that
// product would be more than an exponent can hold, and halves are so far apart that the result is 1
// for the top and 0 for all below it, whatever the factor: 1, whose products are exact.
template <class T>
__device__ __forceinline__ float exponent_factor(float top) {
  if constexpr (std::is_same_v<T, __half>) return kLog2E;
  return fabsf(top) < 0x1p30f ? kLog2E : 1.0f;
}

// exp(x - top) for a finite top.
template <class O, class C>
__device__ __forceinline__ C exp_from(C x, C top) {
  if constexpr (kFastExp<O>) {
    return ex2_approx((x - top) * kLog2E);
  } else {
    return standard_exp(x - top);
  }
}

// Largest value of a row, and the sum of exponentials relative to it.
template <class C>
struct RowNormaliser {
  C top, sum;
};

// Joins what the lanes of each warp have found, the largest value and the sum relative to it, to
// the normaliser of the whole row.
template <class O, class Team, class C>
__device__ __forceinline__ RowNormaliser<C> join_normaliser(Team& team, C top, C sum,
                                                            C extra = C{0}) {
  if (team.in_warp()) return {finite_top(top), sum};
  team.publish(top, sum, extra);
  top = finite_top(team.max_slot_a());
  return {top, team.sum_slots([&](const RowSlot<C>& s) { return s.b * exp_from<O>(s.a, top); })};
}

}  // namespace fusedops
