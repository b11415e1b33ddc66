// rms_norm of rows, with a residual that is added first, straight into FP8 by rows and transposed:
// x is read once and the norm's result never written.
//
// A thread block cluster has 128 rows in its shared memory, each block some tiles of 128x128. The
// blocks tell each other what they know of each row, and then each has whole tiles to scale.
#pragma once

#include "csrc/common/device/mbarrier.cuh"
#include "csrc/cuda/fp8/fp8_hidden.cuh"
#include "csrc/cuda/fp8/norm/fp8_norm.h"

namespace fusedops {

constexpr int norm_shared_bytes(int tiles) {
  return kTileBytes + 2 * kTile * int(sizeof(float)) + tiles * kSlotBytes;
}

// What a block knows of its part of a row.
struct PartOfRow {
  float squares, none;  // NOTE: a pair, as it was measured
};

// To the same place of block `rank` of the cluster.
__device__ __forceinline__ void store_there(PartOfRow* to, uint32_t rank, PartOfRow part) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(cluster_address(shared_address(to), rank)),
      "f"(part.squares), "f"(part.none)
      : "memory");
#endif
}

// Tiles of a block's part of the columns: [first, end).
struct TileRange {
  int first, end;
};
__device__ __forceinline__ TileRange tiles_of(int rank, int cluster, int tiles) {
  return {rank * tiles / cluster, (rank + 1) * tiles / cluster};
}

// Values of this thread's rows that 16 lanes share: afterwards the sum of row lane / 2.
__device__ __forceinline__ float sum_rows(float (&values)[kOwn]) {
  const auto add = [](float a, float b) { return a + b; };
  exchange<8>(values, 8, add);
  exchange<4>(values, 4, add);
  exchange<2>(values, 2, add);
  return values[0] + __shfl_xor_sync(kAllLanes, values[0], 1);
}

// The weight of this thread's columns.
template <class W>
__device__ __forceinline__ void load_weight_as(float (&to)[kOwn], const void* from,
                                               int64_t column) {
  const auto values = *reinterpret_cast<const Vec<W, kOwn>*>(static_cast<const W*>(from) + column);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) to[i] = to_compute(values.value[i]);
}
template <class T>
__device__ __forceinline__ void load_weight(float (&to)[kOwn], int64_t column, const Fp8Norm& p) {
  if (p.weight == nullptr || column >= p.quantize.k) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) to[i] = 1.0f;
  } else if (p.wide_weight) {
    load_weight_as<float>(to, p.weight, column);
  } else {
    load_weight_as<T>(to, p.weight, column);
  }
}

// x + residual of a tile, rounded to T, in x's place and to memory.
template <class T>
__device__ __forceinline__ void add_residual(Vec<T, kOwn>* slot, const TilePlace& at,
                                             const Fp8Norm& p) {
  if (at.column >= p.quantize.k) return;
  Vec<T, kOwn> others[kOwn];
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const bool inside = at.row + r < p.quantize.m;
    others[r] =
        load_row<T>(p.residual, p.residual_stride, at.row + r, at.column, inside, p.quantize);
  }
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    Vec<T, kOwn> x = slot[r * kTileThreads];
#pragma unroll
    for (int i = 0; i < kOwn; i += 2) {
      const float2 a = two_of(x.value + i), b = two_of(others[r].value + i);
      store_two(x.value + i, a.x + b.x, a.y + b.y);
    }
    slot[r * kTileThreads] = x;
    if (at.row + r < p.quantize.m) {
      T* const to = static_cast<T*>(p.sum) + (at.row + r) * p.quantize.k + at.column;
      *reinterpret_cast<Vec<T, kOwn>*>(to) = x;
    }
  }
}

// The sum of squares of this block's part of row lane / 2 of a thread's rows; columns behind the
// last are zeros.
template <class T>
__device__ __forceinline__ PartOfRow part_of_row(const Vec<T, kOwn>* slots, int count) {
  constexpr int kSlot = kTile * kTile / kOwn;
  float values[kOwn];
#pragma unroll
  for (int r = 0; r < kOwn; ++r) values[r] = 0;
  for (int t = 0; t < count; ++t) {
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const Vec<T, kOwn> v = slots[t * kSlot + r * kTileThreads];
#pragma unroll
      for (int i = 0; i < kOwn; i += 2) {
        const float2 x = two_of(v.value + i);
        values[r] += x.x * x.x + x.y * x.y;
      }
    }
  }
  return {sum_rows(values), 0};
}

// 1 / the root mean square of a row, from the sums of all blocks.
__device__ __forceinline__ float join_parts(const PartOfRow* parts, const Fp8Norm& p) {
  const float inverse = 1.0f / float(p.quantize.k);
  float squares = 0;
  for (int b = 0; b < p.cluster; ++b) squares += parts[b * kTile].squares;
  return rsqrtf(squares * inverse + p.eps);
}

// The norm of this thread's part of a tile, rounded to T as a norm that writes it does; zeros
// outside the matrix.
template <class T>
__device__ __forceinline__ void normalize(OwnValues<T>& own, const Vec<T, kOwn>* slot,
                                          const float (&rstd)[kOwn], const float (&weight)[kOwn],
                                          const TilePlace& at, const Fp8Quantize& p) {
  const bool inside = (at.tile_row + 1) * kTile <= p.m && (at.tile_column + 1) * kTile <= p.k;
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const Vec<T, kOwn> v = slot[r * kTileThreads];
    const auto one = [&](float x, int i) { return x * rstd[r] * weight[i]; };
#pragma unroll
    for (int i = 0; i < kOwn; i += 2) {
      const float2 x = two_of(v.value + i);
      store_two(own.row[r].value + i, one(x.x, i), one(x.y, i + 1));
    }
    if (!inside && (at.row + r >= p.m || at.column >= p.k)) own.row[r] = {};
  }
}

template <class T>
__global__ void __launch_bounds__(kTileThreads, 2)
    fp8_norm_kernel(const __grid_constant__ Fp8Norm p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(32) uint8_t bytes[];  // parts of rows or a tile's bytes; as below
  auto* const parts = reinterpret_cast<PartOfRow*>(bytes);
  auto* const inverses = reinterpret_cast<float*>(bytes + kTileBytes);  // before: rstd
  auto* const slots =
      reinterpret_cast<Vec<T, kOwn>*>(bytes + kTileBytes + 2 * kTile * sizeof(float)) + threadIdx.x;
  auto* const maxima = reinterpret_cast<uint32_t*>(bytes) + 2 * kTileWarps * kTile;
  const TileMemory memory{bytes, maxima, maxima + kTile, inverses};
  constexpr int kSlot = kTile * kTile / kOwn;
  cluster_arrive();  // this block has started
  wait_for_predecessor();

  const int rank = int(blockIdx.x) % p.cluster;
  const int tiles = int(ceil_div(p.quantize.k, int64_t{kTile}));
  const TileRange range = tiles_of(rank, p.cluster, tiles);
  const int count = range.end - range.first;
  const auto place = [&](int t) {
    TilePlace at;
    at.tile_row = blockIdx.x / p.cluster;
    at.tile_column = range.first + t;
    at.row = at.tile_row * kTile + threadIdx.x / kTileX * kOwn;
    at.column = at.tile_column * kTile + threadIdx.x % kTileX * kOwn;
    return at;
  };
#pragma unroll 1
  for (int t = 0; t < count; ++t) fetch(slots + t * kSlot, place(t), p.quantize);
  float next[kOwn];
  load_weight<T>(next, place(0).column, p);
  wait_for_all_copies();  // each thread reads what it has copied
  if (p.residual) {
#pragma unroll 1
    for (int t = 0; t < count; ++t) add_residual(slots + t * kSlot, place(t), p);
  }

  // Statistics
  const PartOfRow part = part_of_row(slots, count);
  cluster_wait();
  const int lane = threadIdx.x % kTileX, y = threadIdx.x / kTileX;
  PartOfRow* const mine = parts + rank * kTile + y * kOwn + lane / 2;
  for (int b = lane % 2; b < p.cluster; b += 2) store_there(mine, b, part);
  cluster_sync();
  if (threadIdx.x < kTile) {
    const float of_row = join_parts(parts + threadIdx.x, p);
    inverses[threadIdx.x] = 0, inverses[kTile + threadIdx.x] = of_row;
    const int64_t row = place(0).tile_row * kTile + threadIdx.x;
    if (rank == 0 && row < p.quantize.m) {
      if (p.rstd) p.rstd[row] = of_row;
    }
  }
  __syncthreads();
  float rstd[kOwn];
#pragma unroll
  for (int r = 0; r < kOwn; ++r) rstd[r] = inverses[kTile + y * kOwn + r];

  // Tiles
  float no_sums[kOwn] = {};
#pragma unroll 1
  for (int t = 0; t < count; ++t) {
    const TilePlace at = place(t);
    OwnValues<T> own;
    normalize(own, slots + t * kSlot, rstd, next, at, p.quantize);
    if (t + 1 < count) load_weight<T>(next, place(t + 1).column, p);
    quantize_tile(own, no_sums, at, memory, false, p.quantize);
    __syncthreads();
  }
#endif
}

}  // namespace fusedops
