// The gradient of an activation at what forward saved, which lies in shared memory.
#pragma once

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm90.hpp>

#include "csrc/common/device/value_and_slope.cuh"
#include "csrc/cutlass/kernels/sm90/sm90_epilogue_traits.cuh"

namespace fusedops::sm90 {

// The gradient at the saved values of a 16x16 block, two 8x8 matrices beside two others.
template <class Element, Accuracy kAccuracy, Activation kActivation, bool kHidden>
__device__ __forceinline__ void gradient_unit(float* v, uint8_t* matrices) {
  auto& unit = *reinterpret_cast<cute::uint128_t*>(matrices);
  uint32_t r[4];
  cute::SM75_U32x4_LDSM_N::copy(unit, r[0], r[1], r[2], r[3]);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 saved = unpack<Element>(r[i]);
    float &x = v[i * 2], &y = v[i * 2 + 1];
    if constexpr (kHidden) {
      const auto at_x = value_and_slope<kActivation, kAccuracy>(saved.x);
      const auto at_y = value_and_slope<kActivation, kAccuracy>(saved.y);
      x = times_slope<kActivation>(x, at_x.slope);
      y = times_slope<kActivation>(y, at_y.slope);
      r[i] = pack<Element, false>(at_x.value, at_y.value);
    } else {
      x = activation_gradient_as<kActivation, kAccuracy>(x, saved.x);
      y = activation_gradient_as<kActivation, kAccuracy>(y, saved.y);
    }
  }
  if constexpr (kHidden) cute::SM90_U32x4_STSM_N::copy(r[0], r[1], r[2], r[3], unit);
}

}  // namespace fusedops::sm90
