// Reads x once, and writes e4m3 or e5m2 by rows with a scale for each 1x128, behind an activation
// and times a factor where they are wanted. Half a warp has the 128 columns of four rows: nothing
// goes through shared memory, and nobody waits for other warps.
#pragma once

#include "csrc/common/device/activation.cuh"
#include "csrc/common/device/pdl.cuh"
#include "csrc/cuda/fp8/fp8_quantize.h"
#include "csrc/cuda/fp8/fp8_tile.cuh"

namespace fusedops {

inline constexpr int kFewRows = 4;                                  // of a thread
inline constexpr int kRowsTile = kTileThreads / kTileX * kFewRows;  // of a block
inline constexpr int kLanesOfRow = kTileX / kFewRows;               // that keep its maximum

// What a thread has of x or factor: zeros outside the matrix.
template <class T>
__device__ __forceinline__ void load_few(Vec<T, kOwn> (&rows)[kFewRows], const void* matrix,
                                         int64_t stride, int64_t row, int64_t column, bool inside,
                                         const Fp8Quantize& p) {
#pragma unroll
  for (int r = 0; r < kFewRows; ++r) {
    const bool whole = inside || (p.vectors && row + r < p.m && column + kOwn <= p.k);
    rows[r] = load_row<T>(matrix, stride, row + r, column, whole, p);
  }
}

// x = act(x) * factor, rounded to T; zeros stay outside the matrix.
template <class T, Activation kActivation, bool kFactor>
__device__ __forceinline__ void compute_few(Vec<T, kOwn> (&x)[kFewRows],
                                            const Vec<T, kOwn> (&factor)[kFewRows], int64_t row,
                                            int64_t column, bool inside, const Fp8Quantize& p) {
  resolve_rare<kActivation>(p.activation, [&]<Activation kNow>() {
#pragma unroll
    for (int r = 0; r < kFewRows; ++r) {
#pragma unroll
      for (int i = 0; i < kOwn; i += 2) {
        float v[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          v[e] = activate_as<kNow, kAccuracyOf<T>>(to_compute(x[r].value[i + e]));
          if (kFactor) v[e] *= to_compute(factor[r].value[i + e]);
        }
        store_two(&x[r].value[i], v[0], v[1]);
      }
    }
  });
  if (inside) return;  // act(0) may be more than 0
#pragma unroll
  for (int r = 0; r < kFewRows; ++r) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (row + r >= p.m || column + i >= p.k) x[r].value[i] = from_compute<T>(0.0f);
    }
  }
}

// The scale of row lane % 16 / 4 of those that half a warp has.
template <class T>
__device__ __forceinline__ Fp8Scale scale_few(const Vec<T, kOwn> (&x)[kFewRows],
                                              const Fp8Quantize& p) {
  uint32_t maxima[kOwn];
#pragma unroll
  for (int r = 0; r < kFewRows; ++r) maxima[r] = row_maximum(x[r]);
  const auto larger = [](uint32_t a, uint32_t b) { return max(a, b); };
  exchange<4>(maxima, 8, larger);
  exchange<2>(maxima, 4, larger);
  uint32_t maximum = maxima[0];
  maximum = max(maximum, __shfl_xor_sync(kAllLanes, maximum, 2));
  maximum = max(maximum, __shfl_xor_sync(kAllLanes, maximum, 1));
  return fp8_scale(maximum, largest_value(p.format), p.power_of_two);
}

// NOTE: the activation as an int, as in fp8_quantize.cuh.
template <class T, int kActivationCode, bool kFactor>
__global__ void __launch_bounds__(kTileThreads, sizeof(T) > 2 ? 2
                                                : kFactor     ? 3
                                                              : 4)
    fp8_rows_kernel(const __grid_constant__ Fp8Quantize p) {
  wait_for_predecessor();
  const int64_t blocks = ceil_div(p.k, kTile);
  const int64_t block = blockIdx.x % blocks, first = blockIdx.x / blocks * kRowsTile;
  const int64_t row = first + threadIdx.x / kTileX * kFewRows;
  const int64_t column = block * kTile + threadIdx.x % kTileX * kOwn;
  const bool inside = p.vectors && first + kRowsTile <= p.m && (block + 1) * kTile <= p.k;

  Vec<T, kOwn> x[kFewRows], factor[kFewRows];
  if (inside) {
    load_few(x, p.x, p.x_stride, row, column, true, p);
    if (kFactor) load_few(factor, p.factor, p.factor_stride, row, column, true, p);
  } else {
    load_few(x, p.x, p.x_stride, row, column, false, p);
    if (kFactor) load_few(factor, p.factor, p.factor_stride, row, column, false, p);
  }
  compute_few<T, Activation{kActivationCode}, kFactor>(x, factor, row, column, inside, p);

  const Fp8Scale own = scale_few(x, p);
  const int lane = threadIdx.x % 32;
  const int64_t scaled = row + lane % kTileX / kLanesOfRow;
  if (lane % kLanesOfRow == 0 && scaled < p.rows.scale_pitch) {
    p.rows.scale[block * p.rows.scale_pitch + scaled] = own.scale;
  }
#pragma unroll
  for (int r = 0; r < kFewRows; ++r) {
    const float inverse =
        __shfl_sync(kAllLanes, own.inverse, lane / kTileX * kTileX + r * kLanesOfRow);
    if (column >= p.rows.width || row + r >= p.m) continue;
    uint8_t* const to = p.rows.q + (row + r) * p.rows.pitch + column;
    *reinterpret_cast<uint2*>(to) = p.format == Fp8Format::kE4M3
                                        ? fp8_row<__NV_E4M3>(x[r], inverse)
                                        : fp8_row<__NV_E5M2>(x[r], inverse);
  }
}

}  // namespace fusedops
