// What a thread block knows of its part of 128 rows, tiles in shared memory: sums by Tensor Cores.
#pragma once

#include "csrc/common/device/mma.cuh"
#include "csrc/cuda/fp8/norm/row_parts.cuh"

namespace fusedops {

inline constexpr int kSlotVectors = kTile * kTile / kOwn;

// Slots of a block, which tiles take in turn.
struct NormSlots {
  int count, first;  // first: of the rows at hand

  __device__ __forceinline__ int of(int tile) const {
    const int slot = first + tile;
    return slot < count ? slot : slot - count;
  }
};

// Values of this thread's rows that 16 lanes share: afterwards the sum of row lane / 2.
__device__ __forceinline__ float sum_rows(float (&values)[kOwn]) {
  const auto add = [](float a, float b) { return a + b; };
  exchange<8>(values, 8, add);
  exchange<4>(values, 4, add);
  exchange<2>(values, 2, add);
  return values[0] + __shfl_xor_sync(kAllLanes, values[0], 1);
}

// Calls each(row, its vector) for a thread's parts of a block's tiles.
template <class T, class Each>
__device__ __forceinline__ void for_own_rows(const Vec<T, kOwn>* slots, NormSlots ring, int count,
                                             const Each& each) {
#pragma unroll 1
  for (int t = 0; t < count; ++t) {
    const Vec<T, kOwn>* const slot = slots + ring.of(t) * kSlotVectors;
#pragma unroll
    for (int r = 0; r < kOwn; ++r) each(r, slot[r * kTileThreads]);
  }
}

// Sums of a row's values by Tensor Cores, which add in fp32: a product with ones. The four lanes of
// a row of the left operand have the sums of all, its two halves being parts of one row.
template <class T>
__device__ __forceinline__ float sum_values(const Vec<T, kOwn>* slots, NormSlots ring, int count) {
  constexpr uint32_t kOnes = __is_same(T, __half) ? 0x3c003c00u : 0x3f803f80u;
  float sums[kOwn][4] = {}, values[kOwn];
  for_own_rows(slots, ring, count, [&](int r, const Vec<T, kOwn>& v) {
    mma_k16<T>(sums[r], reinterpret_cast<const uint32_t (&)[4]>(v), kOnes, kOnes);
  });
#pragma unroll
  for (int r = 0; r < kOwn; ++r) values[r] = 0.25f * (sums[r][0] + sums[r][2]);
  return sum_rows(values);
}

// Sums of a row's squares likewise, of values that are multiplied exactly: a product with its own
// transpose. Its diagonal has squares of what four lanes have of a row, one of the four lanes an
// element. The left operand's halves are parts of one row, and each its own product.
// NOTE: so that operands are registers as they lie; each product's other half is not wanted.
template <class T>
__device__ __forceinline__ float sum_squares(const Vec<T, kOwn>* slots, NormSlots ring, int count) {
  float upper[kOwn][4] = {}, lower[kOwn][4] = {}, values[kOwn];
  for_own_rows(slots, ring, count, [&](int r, const Vec<T, kOwn>& v) {
    const auto* const words = reinterpret_cast<const uint32_t*>(v.value);
#pragma unroll
    for (int w = 0; w < 4; w += 2) {
      mma_k8<T>(upper[r], words[w], words[w + 1], words[w]);
      mma_k8<T>(lower[r], words[w], words[w + 1], words[w + 1]);
    }
  });
  const int lane = threadIdx.x % 32, line = lane / 4;
  const bool has = lane % 4 == line / 2, odd = line % 2;
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const float sum = odd ? upper[r][1] + lower[r][3] : upper[r][0] + lower[r][2];
    values[r] = has ? sum : 0.0f;
  }
  return sum_rows(values);
}

// What this block knows of row lane / 2 of a thread's rows. NOTE: columns behind the last are
// zeros, and count in no mean.
template <bool kRms, class T>
__device__ __forceinline__ PartOfRow<kRms> part_of_row(const Vec<T, kOwn>* slots, NormSlots ring,
                                                       TileRange range, int64_t k) {
  const int count = range.end - range.first;
  if constexpr (kRms) {
    return {sum_squares(slots, ring, count)};
  } else {
    const float mean = sum_values(slots, ring, count) / columns_of(range, k);
    const int64_t column = int64_t{range.first} * kTile + threadIdx.x % kTileX * kOwn;
    const int inside = int(ceil_div(k - column, kTile));  // tiles in which the thread has columns
    float values[kOwn] = {}, means[kOwn];
#pragma unroll
    for (int r = 0; r < kOwn; ++r) means[r] = __shfl_sync(kAllLanes, mean, 2 * r, kTileX);
    for_own_rows(slots, ring, min(count, inside), [&](int r, const Vec<T, kOwn>& v) {
#pragma unroll
      for (int i = 0; i < kOwn; i += 2) {
        const float2 x = two_of(v.value + i);
        const float a = x.x - means[r], b = x.y - means[r];
        values[r] = fmaf(a, a, fmaf(b, b, values[r]));
      }
    });
    return {sum_rows(values), mean};
  }
}

}  // namespace fusedops
