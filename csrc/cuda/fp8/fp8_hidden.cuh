// Backward at the hidden layer of an MLP in one pass: reads the gradient and what forward saved (of
// a gated MLP gate and up), and writes the gradients before the activation by rows and transposed,
// their sums over rows, and the hidden values transposed, each in FP8 with its scales.
//
// A block walks over tiles of 128x128. Each thread copies its own part of a tile into shared memory
// and computes in place; what it has read of one slot for the last time, the next tile replaces, so
// that copies are on the way while others are scaled and written.
#pragma once

#include "csrc/common/device/async_copy.cuh"
#include "csrc/common/device/value_and_slope.cuh"
#include "csrc/cuda/fp8/fp8_hidden.h"
#include "csrc/cuda/fp8/fp8_quantize.cuh"

namespace fusedops {

inline constexpr int kSlotBytes = kTile * kTile * 2;
inline constexpr int kTileBytes = kTile * kTile;  // of an FP8 tile
template <bool kGated>
inline constexpr int kHiddenSharedBytes =
    (kGated ? 3 : 2) * kSlotBytes + kTileBytes + 2 * kTile * int(sizeof(float));

__device__ __forceinline__ TilePlace place_of(int64_t tile, int64_t tiles_k) {
  TilePlace at;
  at.tile_row = tile / tiles_k;
  at.tile_column = tile % tiles_k;
  at.row = at.tile_row * kTile + threadIdx.x / kTileX * kOwn;
  at.column = at.tile_column * kTile + threadIdx.x % kTileX * kOwn;
  return at;
}

// This thread's part of a tile, on its way to `slot`: of the first `rows` rows the first `bytes`
// bytes, and zeros.
template <class T>
__device__ __forceinline__ void fetch(Vec<T, kOwn>* slot, const T* from, int64_t stride, int rows,
                                      int bytes) {
  if (rows >= kOwn && bytes >= 16) {
#pragma unroll
    for (int r = 0; r < kOwn; ++r, from += stride) {
      copy_async(shared_address(slot + r * kTileThreads), from);
    }
    return;
  }
#pragma unroll 1
  for (int r = 0; r < kOwn; ++r, from += stride) {
    const int there = r < rows && bytes > 0 ? min(bytes, 16) : 0;
    copy_async(shared_address(slot + r * kTileThreads), from, there);
  }
}
template <class T>
__device__ __forceinline__ void fetch(Vec<T, kOwn>* slot, const TilePlace& at,
                                      const Fp8Quantize& p) {
  const T* const from = static_cast<const T*>(p.x) + at.row * p.x_stride + at.column;
  const int64_t columns = p.k - at.column;
  fetch(slot, from, p.x_stride, int(min(p.m - at.row, int64_t{kOwn})),
        int(min(columns, int64_t{kOwn})) * int(sizeof(T)));
}

// The gradients of an element and its hidden value.
struct HiddenValues {
  float gradient, hidden, factor;
};
template <Activation kActivation, Accuracy kAccuracy, bool kGated>
__device__ __forceinline__ HiddenValues hidden_values(float dh, float saved, float factor) {
  constexpr bool kFromSaved = !kGated && saved_for_backward(kActivation) != Saved::kPreact;
  if constexpr (kFromSaved) {
    return {activation_gradient_as<kActivation, kAccuracy>(dh, saved), saved, 0};
  } else {
    const auto at = value_and_slope<kActivation, kAccuracy>(saved);
    const float upper = kGated ? dh * factor : dh;
    return {times_slope<kActivation>(upper, at.slope), kGated ? at.value * factor : at.value,
            dh * at.value};
  }
}

// In the slots, in place: rounded to T, and zeros outside the matrix. sums: of the gradient's
// columns before it is rounded, where there is one gradient.
template <class T, Activation kActivation, bool kGated>
__device__ __forceinline__ void compute_slots(Vec<T, kOwn>* slots, float (&sums)[kOwn],
                                              const TilePlace& at, const Fp8Hidden& p) {
  constexpr int kSlot = kTile * kTile / kOwn;
#pragma unroll
  for (int c = 0; c < kOwn; ++c) sums[c] = 0;
#pragma unroll(kActivation == kAnyRare ? 1 : 2)
  for (int r = 0; r < kOwn; ++r) {
    Vec<T, kOwn>* const from = slots + r * kTileThreads;
    Vec<T, kOwn> gradient = from[0], saved = from[kSlot], factor = saved;
    if (kGated) factor = from[2 * kSlot];
    resolve_rare<kActivation>(p.activation, [&]<Activation kNow>() {
#pragma unroll
      for (int i = 0; i < kOwn; i += 2) {
        const float2 dh = two_of(gradient.value + i), z = two_of(saved.value + i);
        const float2 f = two_of(factor.value + i);
        const HiddenValues x = hidden_values<kNow, kAccuracyOf<T>, kGated>(dh.x, z.x, f.x);
        const HiddenValues y = hidden_values<kNow, kAccuracyOf<T>, kGated>(dh.y, z.y, f.y);
        if (!kGated) sums[i] += x.gradient, sums[i + 1] += y.gradient;
        store_two(gradient.value + i, x.gradient, y.gradient);
        store_two(saved.value + i, x.hidden, y.hidden);
        if (kGated) store_two(factor.value + i, x.factor, y.factor);
      }
    });
    from[0] = gradient, from[kSlot] = saved;
    if (kGated) from[2 * kSlot] = factor;
  }
  const bool inside = (at.tile_row + 1) * kTile <= p.m && (at.tile_column + 1) * kTile <= p.k;
  if (inside) return;  // act(0) may be more than 0
#pragma unroll 1
  for (int r = 0; r < kOwn; ++r) {
#pragma unroll 1
    for (int i = 0; i < kOwn; ++i) {
      if (at.row + r < p.m && at.column + i < p.k) continue;
      for (int slot = 0; slot < (kGated ? 3 : 2); ++slot) {
        slots[slot * kSlot + r * kTileThreads].value[i] = from_compute<T>(0.0f);
      }
    }
  }
}

template <class T>
__device__ __forceinline__ void sum_own(const OwnValues<T>& own, float (&sums)[kOwn]) {
#pragma unroll
  for (int c = 0; c < kOwn; ++c) {
    sums[c] = 0;
#pragma unroll
    for (int r = 0; r < kOwn; ++r) sums[c] += to_compute(own.row[r].value[c]);
  }
}

// Whether nothing of a slot is wanted.
__device__ __forceinline__ bool is_idle(const Fp8Quantize& p) {
  return p.rows.scaling == Fp8Scaling::kNone && p.columns.scaling == Fp8Scaling::kNone &&
         p.partial == nullptr;
}

// NOTE: the activation as an int, as in fp8_quantize.cuh.
template <class T, int kActivationCode, bool kGated>
__global__ void __launch_bounds__(kTileThreads, 2)
    fp8_hidden_kernel(const __grid_constant__ Fp8Hidden p) {
  extern __shared__ __align__(32) uint8_t bytes[];  // a tile's bytes, inverses, slots
  auto* const inverses = reinterpret_cast<float*>(bytes + kTileBytes);
  auto* const slots =
      reinterpret_cast<Vec<T, kOwn>*>(bytes + kTileBytes + 2 * kTile * sizeof(float)) + threadIdx.x;
  // Maxima lie behind what warps have of columns.
  auto* const maxima = reinterpret_cast<uint32_t*>(bytes) + 2 * kTileWarps * kTile;
  const TileMemory memory{bytes, maxima, maxima + kTile, inverses};
  constexpr int kSlot = kTile * kTile / kOwn, kSlots = kGated ? 3 : 2;
  wait_for_predecessor();

  const int64_t tiles_k = ceil_div(p.k, kTile), tiles = ceil_div(p.m, kTile) * tiles_k;
  const auto of_slot = [&](int slot) -> const Fp8Quantize& {
    return slot == 0 ? p.gradient : slot == 1 ? p.saved : p.factor;
  };
  int64_t tile = blockIdx.x;
  TilePlace at = place_of(tile, tiles_k);
#pragma unroll 1
  for (int slot = 0; slot < kSlots; ++slot) fetch(slots + slot * kSlot, at, of_slot(slot));
  while (tile < tiles) {
    wait_for_all_copies();
    float sums[kOwn];
    compute_slots<T, Activation{kActivationCode}, kGated>(slots, sums, at, p);
    tile += gridDim.x;
    const TilePlace next = place_of(tile, tiles_k);
#pragma unroll 1
    for (int slot = 0; slot < kSlots; ++slot) {
      const Fp8Quantize& now = of_slot(slot);
      if (is_idle(now)) {
        if (tile < tiles) fetch(slots + slot * kSlot, next, now);
        continue;
      }
      OwnValues<T> own;
#pragma unroll
      for (int r = 0; r < kOwn; ++r) own.row[r] = slots[slot * kSlot + r * kTileThreads];
      if (kGated && now.partial) sum_own(own, sums);
      quantize_tile(own, sums, at, memory, false, now, [&] {
        if (tile < tiles) fetch(slots + slot * kSlot, next, now);
      });
      __syncthreads();
    }
    at = next;
  }
}

}  // namespace fusedops
