// Where accumulators lie in the panels that stage them, with the swizzle that TMA expects.
#pragma once

#include "csrc/cutlass/kernels/hopper/sm90_tma.cuh"

namespace fusedops::sm90 {

// The place of this lane's row of an 8x8 matrix of 2-byte values in a panel, for matrices 0..3 =
// (upper, lower rows) x (columns 8 j.., the next 8) of the warp's 16 rows.
template <class Byte>
__device__ __forceinline__ Byte* place_of_row(Byte* panel, int thread, int row_block, int j) {
  const int lane = thread % 32;
  const int r = row_block * 64 + thread / 32 * 16 + (lane / 8 % 2) * 8 + lane % 8;
  return panel + r * kBoxRowBytes + (((j + lane / 16) ^ (lane % 8)) * 16);
}

// values(j): the four accumulators of columns 8 j... Odd rows begin at the other half of the
// columns: with the swizzle, half a warp's stores then have a bank each.
template <class Values>
__device__ __forceinline__ void stage_fp32(uint8_t* panel, int thread, Values&& values) {
  const int lane = thread % 32, r = lane / 4, odd = r % 2;
  uint8_t* at = panel + (thread / 32 * 16 + r) * kBoxRowBytes + lane % 2 * 8;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float *even_row = values(j), *odd_row = values(j ^ 2);
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = odd ? odd_row[i] : even_row[i];
    const int unit = (j * 2 + lane % 4 / 2) ^ r ^ (odd * 4);
    *reinterpret_cast<float2*>(at + unit * 16) = {v[0], v[1]};
    *reinterpret_cast<float2*>(at + unit * 16 + 8 * kBoxRowBytes) = {v[2], v[3]};
  }
}

}  // namespace fusedops::sm90
