// A tile of 128x128 of a norm that quantises, once the statistics of its rows are known: each of
// 256 threads has 8 rows of 8 columns.
#pragma once

#include "csrc/cuda/fp8/fp8_hidden.cuh"
#include "csrc/cuda/fp8/norm/fp8_norm.h"

namespace fusedops {

template <bool kRms>
struct RowStatistics {
  float rstd, mean;
};
template <>
struct RowStatistics<true> {
  float rstd;
};

// What a thread knows of the tile at hand, and where its parts of what comes out go. NOTE: all
// rows and columns are counted in 32 bits.
struct NormPlace {
  int rows;     // from the thread's first to the last of the matrix
  int column;   // its first
  int columns;  // from the first that it reads of the transpose to the last of the matrix
  uint8_t *row_bytes, *column_bytes;
  float* row_scale;  // of row lane / 2

  __device__ __forceinline__ NormPlace(int tile_row, int tile_column, const Fp8Quantize& p) {
    const int x = threadIdx.x % kTileX * kOwn, y = threadIdx.x / kTileX * kOwn;
    const int64_t row = int64_t{tile_row} * kTile + y;
    rows = int(p.m) - tile_row * kTile - y;
    column = tile_column * kTile + x;
    row_bytes = p.rows.q + row * p.rows.pitch + column;
    row_scale = p.rows.scale + tile_column * p.rows.scale_pitch + row + threadIdx.x % kTileX / 2;
    const int64_t token = int64_t{tile_row} * kTile + read_row();
    const int64_t first = int64_t{tile_column} * kTile + read_column();
    columns = token < p.columns.pitch ? int(p.k - first) : 0;
    column_bytes = p.columns.q + first * p.columns.pitch + token;
  }
  __device__ __forceinline__ bool whole(const Fp8Quantize& p) const {
    return rows >= kOwn && column < int(p.k);
  }
  // Whether it writes row_scale: one of two lanes does, and there are scales of padding.
  __device__ __forceinline__ bool has_scale(const Fp8Quantize& p) const {
    const int lines = rows + int(p.rows.scale_lines - p.m);
    return threadIdx.x % 2 == 0 && int(threadIdx.x) % kTileX / 2 < lines;
  }
};

// Weight and bias of this thread's columns.
template <bool kRms>
struct NormParameters {
  float weight[kOwn], bias[kRms ? 1 : kOwn];

  template <class W>
  __device__ __forceinline__ static void load_as(float (&to)[kOwn], const void* from, int column) {
    const auto values =
        *reinterpret_cast<const Vec<W, kOwn>*>(static_cast<const W*>(from) + column);
#pragma unroll
    for (int i = 0; i < kOwn; i += 2) {
      const float2 two = two_of(values.value + i);
      to[i] = two.x, to[i + 1] = two.y;
    }
  }
  template <class T>
  __device__ __forceinline__ static void load(float (&to)[kOwn], const void* from, float missing,
                                              int column, const Fp8Norm& p) {
    if (from == nullptr || column >= int(p.quantize.k)) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) to[i] = missing;
    } else if (p.wide_parameters) {
      load_as<float>(to, from, column);
    } else {
      load_as<T>(to, from, column);
    }
  }
  template <class T>
  __device__ __forceinline__ void load_all(int column, const Fp8Norm& p) {
    load<T>(weight, p.weight, 1.0f, column, p);
    if constexpr (!kRms) load<T>(bias, p.bias, 0.0f, column, p);
  }
};

// x + residual, rounded to T.
template <class T>
__device__ __forceinline__ void add_to(Vec<T, kOwn>& x, const Vec<T, kOwn>& other) {
#pragma unroll
  for (int i = 0; i < kOwn; i += 2) {
    const float2 a = two_of(x.value + i), b = two_of(other.value + i);
    store_two(x.value + i, a.x + b.x, a.y + b.y);
  }
}

// Pairs of T, as words. The larger of two pairs of magnitudes:
template <class T>
struct LargerPair {
  using Pair = typename PairOf<T>::type;
  __device__ __forceinline__ uint32_t operator()(uint32_t a, uint32_t b) const {
    const Pair pair = larger_pair(*reinterpret_cast<Pair*>(&a), *reinterpret_cast<Pair*>(&b));
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

// The norm of this thread's part of a tile, rounded to T as a norm that writes it does, and the
// largest magnitudes of its rows, two in a word; zeros outside the matrix.
template <bool kRms, class T>
__device__ __forceinline__ void normalize(OwnValues<T>& own, uint32_t (&maxima)[kOwn / 2],
                                          const Vec<T, kOwn>* slot,
                                          const RowStatistics<kRms> (&of_row)[kOwn],
                                          const NormParameters<kRms>& with, const NormPlace& at,
                                          const Fp8Quantize& p) {
  uint32_t before = 0;
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    Vec<T, kOwn> v = slot[r * kTileThreads];
    const auto one = [&](float x, int i) {
      if constexpr (kRms) {
        return x * of_row[r].rstd * with.weight[i];
      } else {
        return fmaf((x - of_row[r].mean) * of_row[r].rstd, with.weight[i], with.bias[i]);
      }
    };
#pragma unroll
    for (int i = 0; i < kOwn; i += 2) {
      const float2 x = two_of(v.value + i);
      store_two(v.value + i, one(x.x, i), one(x.y, i + 1));
    }
    own.row[r] = v;
    const auto pair = pair_maximum(v);
    const auto now = *reinterpret_cast<const uint32_t*>(&pair);
    if (r % 2 != 0) {
      maxima[r / 2] =
          LargerPair<T>{}(__byte_perm(before, now, 0x5410), __byte_perm(before, now, 0x7632));
    }
    before = now;
  }
  if (at.whole(p)) return;
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    if (r < at.rows && at.column < int(p.k)) continue;
    own.row[r] = {};
    maxima[r / 2] &= r % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
  }
}

// The largest magnitude of row lane / 2 of a thread's rows: 16 lanes have all of them.
template <class T>
__device__ __forceinline__ uint32_t maximum_of_row(uint32_t (&maxima)[kOwn / 2]) {
  const LargerPair<T> larger;
  exchange<4>(maxima, 8, larger);
  exchange<2>(maxima, 4, larger);
  uint32_t both = larger(maxima[0], __shfl_xor_sync(kAllLanes, maxima[0], 2));
  both = larger(both, __shfl_xor_sync(kAllLanes, both, 1));
  const float2 values = two_of(reinterpret_cast<const T*>(&both));
  return magnitude(threadIdx.x & 2 ? values.y : values.x);
}

// Rows with a scale for each 1x128. scale: that of row lane / 2.
template <class T>
__device__ __forceinline__ void write_rows(const OwnValues<T>& own, const Fp8Scale& scale,
                                           const NormPlace& at, const Fp8Quantize& p) {
  if (at.has_scale(p)) *at.row_scale = scale.scale;
  float inverses[kOwn];
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    inverses[r] = __shfl_sync(kAllLanes, scale.inverse, 2 * r, kTileX);
  }
  const int rows = at.column < int(p.rows.width) ? at.rows : 0;
  p.format == Fp8Format::kE4M3
      ? store_rows<__NV_E4M3>(own, inverses, at.row_bytes, p.rows.pitch, rows)
      : store_rows<__NV_E5M2>(own, inverses, at.row_bytes, p.rows.pitch, rows);
}

// The scale of a tile, given those of its rows: quotients rounded to nearest keep the order of the
// maxima. All threads call it.
__device__ __forceinline__ Fp8Scale scale_of_tile(const Fp8Scale& of_row, uint2* of_warps) {
  const uint32_t scale = __reduce_max_sync(kAllLanes, __float_as_uint(of_row.scale));
  const uint32_t inverse = __reduce_min_sync(kAllLanes, __float_as_uint(of_row.inverse));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = {scale, inverse};
  __syncthreads();
  const uint2 of_warp = of_warps[threadIdx.x % kTileWarps];
  return {__uint_as_float(__reduce_max_sync(kAllLanes, of_warp.x)),
          __uint_as_float(__reduce_min_sync(kAllLanes, of_warp.y))};
}

// The transpose with one scale for the tile, given those of its rows, into shared memory. All
// threads call it; it ends without a barrier.
template <class T>
__device__ __forceinline__ void scale_columns(const OwnValues<T>& own, const Fp8Scale& of_row,
                                              int tile_row, int tile_column, uint8_t* bytes,
                                              uint2* of_warps, const Fp8Quantize& p) {
  const Fp8Scale scale = scale_of_tile(of_row, of_warps);
  if (threadIdx.x == 0) {
    p.columns.scale[tile_column * p.columns.scale_pitch + tile_row] = scale.scale;
  }
  float inverses[kOwn];
#pragma unroll
  for (int c = 0; c < kOwn; ++c) inverses[c] = scale.inverse;
  p.format == Fp8Format::kE4M3 ? columns_into<__NV_E4M3>(own, inverses, bytes)
                               : columns_into<__NV_E5M2>(own, inverses, bytes);
}

}  // namespace fusedops
