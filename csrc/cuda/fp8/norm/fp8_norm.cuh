// layer_norm or rms_norm of rows, with a residual that is added first, straight into FP8 by rows
// and transposed: x is read once and the norm's result never written.
//
// A thread block cluster has 128 rows in its shared memory, each block some tiles of 128x128. The
// blocks tell each other what they know of each row, and then each has whole tiles to scale.
#pragma once

#include "csrc/common/device/mbarrier.cuh"
#include "csrc/cuda/fp8/fp8_hidden.cuh"
#include "csrc/cuda/fp8/norm/fp8_norm.h"

namespace fusedops {

inline constexpr int kNormClusters = 16;  // blocks of a cluster, at most
inline constexpr int kNormTiles = 6;      // of a block, at most

constexpr int norm_shared_bytes(int tiles) {
  return kTileBytes + 2 * kTile * int(sizeof(float)) + tiles * kSlotBytes;
}

// What a block knows of its part of a row.
struct PartOfRow {
  float squares, mean;  // of a layer norm differences to the mean
};
static_assert(kNormClusters * kTile * sizeof(PartOfRow) <= kTileBytes);

// To the same place of block `rank` of the cluster.
__device__ __forceinline__ void store_there(PartOfRow* to, uint32_t rank, PartOfRow part) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(cluster_address(shared_address(to), rank)),
      "f"(part.squares), "f"(part.mean)
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
__device__ __forceinline__ float columns_of(TileRange range, int64_t k) {
  return float(min(int64_t{range.end} * kTile, k) - int64_t{range.first} * kTile);
}

// Values of this thread's rows that 16 lanes share: afterwards the sum of row lane / 2.
__device__ __forceinline__ float sum_rows(float (&values)[kOwn]) {
  const auto add = [](float a, float b) { return a + b; };
  exchange<8>(values, 8, add);
  exchange<4>(values, 4, add);
  exchange<2>(values, 2, add);
  return values[0] + __shfl_xor_sync(kAllLanes, values[0], 1);
}

// Weight and bias of this thread's columns.
template <bool kRms>
struct NormParameters {
  float weight[kOwn], bias[kRms ? 1 : kOwn];

  template <class W>
  __device__ __forceinline__ static void load_as(float (&to)[kOwn], const void* from,
                                                 int64_t column) {
    const auto values =
        *reinterpret_cast<const Vec<W, kOwn>*>(static_cast<const W*>(from) + column);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) to[i] = to_compute(values.value[i]);
  }
  template <class T>
  __device__ __forceinline__ static void load(float (&to)[kOwn], const void* from, float missing,
                                              int64_t column, const Fp8Norm& p) {
    if (from == nullptr || column >= p.quantize.k) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) to[i] = missing;
    } else if (p.wide_parameters) {
      load_as<float>(to, from, column);
    } else {
      load_as<T>(to, from, column);
    }
  }
  template <class T>
  __device__ __forceinline__ void load_all(int64_t column, const Fp8Norm& p) {
    load<T>(weight, p.weight, 1.0f, column, p);
    if constexpr (!kRms) load<T>(bias, p.bias, 0.0f, column, p);
  }
};

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

// What this block knows of row lane / 2 of a thread's rows. NOTE: columns behind the last are
// zeros, and count in no mean.
template <bool kRms, class T>
__device__ __forceinline__ PartOfRow part_of_row(const Vec<T, kOwn>* slots, TileRange range,
                                                 int64_t k) {
  constexpr int kSlot = kTile * kTile / kOwn;
  const int count = range.end - range.first;
  const int64_t column = int64_t{range.first} * kTile + threadIdx.x % kTileX * kOwn;
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
        values[r] += kRms ? x.x * x.x + x.y * x.y : x.x + x.y;
      }
    }
  }
  const float total = sum_rows(values);
  if constexpr (kRms) {
    return {total, 0};
  } else {
    const float mean = total / columns_of(range, k);
#pragma unroll
    for (int r = 0; r < kOwn; ++r) values[r] = 0;
    float means[kOwn];
#pragma unroll
    for (int r = 0; r < kOwn; ++r) means[r] = __shfl_sync(kAllLanes, mean, 2 * r, kTileX);
    for (int t = 0; t < count; ++t) {
      if (column + t * kTile >= k) break;
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
        const Vec<T, kOwn> v = slots[t * kSlot + r * kTileThreads];
#pragma unroll
        for (int i = 0; i < kOwn; i += 2) {
          const float2 x = two_of(v.value + i);
          const float a = x.x - means[r], b = x.y - means[r];
          values[r] += a * a + b * b;
        }
      }
    }
    return {sum_rows(values), mean};
  }
}

// Of a row, from what all blocks know, joined as Chan, Golub and LeVeque do.
struct RowStatistics {
  float mean, rstd;
};
template <bool kRms>
__device__ __forceinline__ RowStatistics join_parts(const PartOfRow* parts, int tiles,
                                                    const Fp8Norm& p) {
  const float inverse = 1.0f / float(p.quantize.k);
  float mean = 0, squares = 0;
  if constexpr (!kRms) {
    for (int b = 0; b < p.cluster; ++b) {
      mean += columns_of(tiles_of(b, p.cluster, tiles), p.quantize.k) * parts[b * kTile].mean;
    }
    mean *= inverse;
  }
  for (int b = 0; b < p.cluster; ++b) {
    const PartOfRow part = parts[b * kTile];
    squares += part.squares;
    if constexpr (!kRms) {
      const float d = part.mean - mean;
      squares += columns_of(tiles_of(b, p.cluster, tiles), p.quantize.k) * d * d;
    }
  }
  return {mean, rsqrtf(squares * inverse + p.eps)};
}

// The norm of this thread's part of a tile, rounded to T as a norm that writes it does; zeros
// outside the matrix.
template <bool kRms, class T>
__device__ __forceinline__ void normalize(OwnValues<T>& own, const Vec<T, kOwn>* slot,
                                          const RowStatistics (&of_row)[kOwn],
                                          const NormParameters<kRms>& with, const TilePlace& at,
                                          const Fp8Quantize& p) {
  const bool inside = (at.tile_row + 1) * kTile <= p.m && (at.tile_column + 1) * kTile <= p.k;
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const Vec<T, kOwn> v = slot[r * kTileThreads];
    const auto one = [&](float x, int i) {
      if constexpr (kRms) return x * of_row[r].rstd * with.weight[i];
      return fmaf((x - of_row[r].mean) * of_row[r].rstd, with.weight[i], with.bias[kRms ? 0 : i]);
    };
#pragma unroll
    for (int i = 0; i < kOwn; i += 2) {
      const float2 x = two_of(v.value + i);
      store_two(own.row[r].value + i, one(x.x, i), one(x.y, i + 1));
    }
    if (!inside && (at.row + r >= p.m || at.column >= p.k)) own.row[r] = {};
  }
}

template <class T, bool kRms>
__global__ void __launch_bounds__(kTileThreads, 2)
    fp8_norm_kernel(const __grid_constant__ Fp8Norm p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(32) uint8_t bytes[];  // parts of rows or a tile's bytes; as below
  auto* const parts = reinterpret_cast<PartOfRow*>(bytes);
  auto* const inverses = reinterpret_cast<float*>(bytes + kTileBytes);  // before: statistics
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
  NormParameters<kRms> next;
  next.template load_all<T>(place(0).column, p);
  wait_for_all_copies();  // each thread reads what it has copied
  if (p.residual) {
#pragma unroll 1
    for (int t = 0; t < count; ++t) add_residual(slots + t * kSlot, place(t), p);
  }

  // Statistics
  const PartOfRow part = part_of_row<kRms>(slots, range, p.quantize.k);
  cluster_wait();
  const int lane = threadIdx.x % kTileX, y = threadIdx.x / kTileX;
  PartOfRow* const mine = parts + rank * kTile + y * kOwn + lane / 2;
  for (int b = lane % 2; b < p.cluster; b += 2) store_there(mine, b, part);
  cluster_sync();
  if (threadIdx.x < kTile) {
    const RowStatistics of_row = join_parts<kRms>(parts + threadIdx.x, tiles, p);
    inverses[threadIdx.x] = of_row.mean, inverses[kTile + threadIdx.x] = of_row.rstd;
    const int64_t row = place(0).tile_row * kTile + threadIdx.x;
    if (rank == 0 && row < p.quantize.m) {
      if (!kRms && p.mean) p.mean[row] = of_row.mean;
      if (p.rstd) p.rstd[row] = of_row.rstd;
    }
  }
  __syncthreads();
  RowStatistics of_row[kOwn];
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    of_row[r] = {kRms ? 0 : inverses[y * kOwn + r], inverses[kTile + y * kOwn + r]};
  }

  // Tiles
  float no_sums[kOwn] = {};
#pragma unroll 1
  for (int t = 0; t < count; ++t) {
    const TilePlace at = place(t);
    OwnValues<T> own;
    normalize<kRms>(own, slots + t * kSlot, of_row, next, at, p.quantize);
    if (t + 1 < count) next.template load_all<T>(place(t + 1).column, p);
    quantize_tile(own, no_sums, at, memory, false, p.quantize);
    __syncthreads();
  }
#endif
}

}  // namespace fusedops
