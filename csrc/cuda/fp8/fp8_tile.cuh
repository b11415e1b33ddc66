// A 128x128 tile in the registers of 256 threads, each with 8 rows of 8 columns: its maxima and
// sums, and its transpose through shared memory.
#pragma once

#include <cuda_fp8.h>

#include "csrc/common/device/activation.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/common/fp8.h"

namespace fusedops {

inline constexpr int kTile = int(kFp8Block), kTileThreads = 256;
inline constexpr int kOwn = 8;                        // rows and columns of a thread
inline constexpr int kTileX = kTile / kOwn;           // threads along the columns
inline constexpr int kTileWarps = kTileThreads / 32;  // two rows of threads each
inline constexpr uint32_t kAllLanes = 0xffffffffu;

// ---- values ----

template <class T>
struct PairOf;
template <>
struct PairOf<__half> {
  using type = __half2;
};
template <>
struct PairOf<__nv_bfloat16> {
  using type = __nv_bfloat162;
};

__device__ __forceinline__ float2 as_floats(__half2 v) { return __half22float2(v); }
// NOTE: CUDA's conversion of a pair takes three instructions.
__device__ __forceinline__ float2 as_floats(__nv_bfloat162 v) {
  const auto word = *reinterpret_cast<const uint32_t*>(&v);
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
}

// Two neighbouring values.
template <class T>
__device__ __forceinline__ float2 two_of(const T* from) {
  return as_floats(*reinterpret_cast<const typename PairOf<T>::type*>(from));
}
__device__ __forceinline__ float2 two_of(const float* from) { return {from[0], from[1]}; }

// What a thread has of a tile.
template <class T>
struct OwnValues {
  Vec<T, kOwn> row[kOwn];
};

// kOwn elements of a row; zeros outside the matrix.
template <class T, class Problem>
__device__ __forceinline__ Vec<T, kOwn> load_row(const void* matrix, int64_t stride, int64_t row,
                                                 int64_t column, bool whole, const Problem& p) {
  Vec<T, kOwn> v;
  const T* const from = static_cast<const T*>(matrix) + row * stride + column;
  if (whole) {
#pragma unroll
    for (int i = 0; i < int(sizeof(v) / 16); ++i) {
      reinterpret_cast<uint4*>(&v)[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
    }
    return v;
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    v.value[i] = row < p.m && column + i < p.k ? from[i] : from_compute<T>(0.0f);
  }
  return v;
}

// Two neighbouring values, rounded to T.
template <class T>
__device__ __forceinline__ void store_two(T* to, float first, float second) {
  to[0] = from_compute<T>(first), to[1] = from_compute<T>(second);
}
__device__ __forceinline__ void store_two(__nv_bfloat16* to, float first, float second) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(first, second);
}
__device__ __forceinline__ void store_two(__half* to, float first, float second) {
  *reinterpret_cast<__half2*>(to) = __floats2half2_rn(first, second);
}

// ---- maxima, as the bits of magnitudes: their order is that of integers, with NaN at the top ----

__device__ __forceinline__ uint32_t magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }

__device__ __forceinline__ __half2 larger_pair(__half2 a, __half2 b) { return __hmax2_nan(a, b); }
__device__ __forceinline__ __nv_bfloat162 larger_pair(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __hmax2_nan(a, b);
}
// Those of a row's even and odd columns.
template <class T>
__device__ __forceinline__ typename PairOf<T>::type pair_maximum(const Vec<T, kOwn>& v) {
  const auto* pairs = reinterpret_cast<const typename PairOf<T>::type*>(v.value);
  auto row = __habs2(pairs[0]);
#pragma unroll
  for (int c = 1; c < kOwn / 2; ++c) row = larger_pair(row, __habs2(pairs[c]));
  return row;
}

template <class T>
__device__ __forceinline__ uint32_t row_maximum(const Vec<T, kOwn>& v) {
  if constexpr (sizeof(T) == 2) {
    const float2 both = as_floats(pair_maximum(v));
    return max(magnitude(both.x), magnitude(both.y));
  } else {
    uint32_t row = 0;
#pragma unroll
    for (int c = 0; c < kOwn; ++c) row = max(row, magnitude(v.value[c]));
    return row;
  }
}

// Those of a thread's rows and columns.
template <class T>
__device__ __forceinline__ void own_maxima(const OwnValues<T>& v, uint32_t (&by_row)[kOwn],
                                           uint32_t (&by_column)[kOwn]) {
  if constexpr (sizeof(T) == 2) {
    using Pair = typename PairOf<T>::type;
    Pair column[kOwn / 2];
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const auto* pairs = reinterpret_cast<const Pair*>(v.row[r].value);
      Pair row;
#pragma unroll
      for (int c = 0; c < kOwn / 2; ++c) {
        const Pair pair = __habs2(pairs[c]);
        row = c == 0 ? pair : larger_pair(row, pair);
        column[c] = r == 0 ? pair : larger_pair(column[c], pair);
      }
      const float2 both = as_floats(row);
      by_row[r] = max(magnitude(both.x), magnitude(both.y));
    }
#pragma unroll
    for (int c = 0; c < kOwn / 2; ++c) {
      const float2 both = as_floats(column[c]);
      by_column[2 * c] = magnitude(both.x);
      by_column[2 * c + 1] = magnitude(both.y);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) by_row[i] = by_column[i] = 0;
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
        const uint32_t m = magnitude(v.row[r].value[c]);
        by_row[r] = max(by_row[r], m);
        by_column[c] = max(by_column[c], m);
      }
    }
  }
}

// One step of a reduction in which lanes that differ in `bit` share kCount values: each keeps half
// of them, the upper half where its bit is set.
template <int kCount, class V, int kSize, class Combine>
__device__ __forceinline__ void exchange(V (&values)[kSize], int bit, Combine combine) {
  const bool upper = threadIdx.x & bit;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const V kept = upper ? values[i + kCount / 2] : values[i];
    const V sent = upper ? values[i] : values[i + kCount / 2];
    values[i] = combine(kept, __shfl_xor_sync(kAllLanes, sent, bit));
  }
}

// The maxima of the tile's rows, to shared memory. The 16 lanes of a row of threads share rows.
__device__ __forceinline__ void rows_to_shared(uint32_t (&by_row)[kOwn], uint32_t* maxima) {
  const auto larger = [](uint32_t a, uint32_t b) { return max(a, b); };
  exchange<8>(by_row, 8, larger);
  exchange<4>(by_row, 4, larger);
  exchange<2>(by_row, 2, larger);
  const uint32_t other = __shfl_xor_sync(kAllLanes, by_row[0], 1);
  const int lane = threadIdx.x % kTileX, y = threadIdx.x / kTileX;
  if (lane % 2 == 0) maxima[y * kOwn + lane / 2] = max(by_row[0], other);
}

// What each warp has of the tile's columns, to row `warp` of shared memory.
template <class V, class Combine>
__device__ __forceinline__ void columns_to_shared(V (&by_column)[kOwn], V* of_warps,
                                                  Combine combine) {
  exchange<8>(by_column, kTileX, combine);
  const int x = threadIdx.x % kTileX, warp = threadIdx.x / 32;
  const int half = threadIdx.x % 32 / kTileX;
  auto* const to = of_warps + warp * kTile + x * kOwn + half * (kOwn / 2);
  *reinterpret_cast<Vec<V, kOwn / 2>*>(to) = {by_column[0], by_column[1], by_column[2],
                                              by_column[3]};
}

// ---- scales ----

struct Fp8Scale {
  float scale, inverse;
};

// One step of Newton's method at the quotient a / b, given the reciprocal of b, both nearly
// rounded: it rounds the quotient as a division does (Markstein 1990).
__device__ __forceinline__ float rounded_quotient(float a, float b, float reciprocal) {
  const float q = a * reciprocal;
  return fmaf(fmaf(-q, b, a), reciprocal, q);
}

// NOTE: a block with NaN or infinity has a scale of NaN, and 0 for an inverse: what is finite in
// it, and the padding, becomes 0.
// NOTE: maximum / largest and largest / maximum, rounded to nearest, without the two divisions and
// their branches: both formats' largest value is 1.75 and an exponent. A program has compared all
// mantissas, of every reciprocal within an ulp.
__device__ __forceinline__ Fp8Scale fp8_scale(uint32_t maximum_bits, float largest,
                                              bool power_of_two) {
  constexpr uint32_t kOne = 0x3f800000u, kExponent = 0x7f800000u;
  constexpr float kMantissa = 1.75f;
  const uint32_t exponent_of_largest = __float_as_uint(largest) & kExponent;
  const float reciprocal =
      __uint_as_float(__float_as_uint(1 / kMantissa) + kOne - exponent_of_largest);
  const float maximum = fmaxf(__uint_as_float(maximum_bits), kFp8SmallestMaximum);
  const uint32_t bits = __float_as_uint(maximum);
  const float scale = rounded_quotient(maximum, largest, reciprocal);

  const float mantissa = __uint_as_float((bits & ~kExponent) | kOne);
  float of_mantissa = rcp_approx(mantissa);
  of_mantissa = fmaf(fmaf(-mantissa, of_mantissa, 1.0f), of_mantissa, of_mantissa);
  const float quotient = rounded_quotient(kMantissa, mantissa, of_mantissa);
  uint32_t inverse = __float_as_uint(quotient) - (bits & kExponent) + exponent_of_largest;

  uint32_t found = __float_as_uint(scale);
  if (power_of_two) {
    found = (found + 0x7fffffu) & kExponent;
    inverse = 2 * kOne - found;
  }
  const bool finite = maximum_bits < kExponent;
  return {__uint_as_float(finite ? found : 0x7fc00000u), __uint_as_float(finite ? inverse : 0)};
}

// ---- bytes ----

// Two values in the lower half of a word, the first one lowest.
template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ uint32_t fp8_pair_here(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, kFormat);
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
// A long function where there is no instruction.
template <__nv_fp8_interpretation_t kFormat>
__device__ __noinline__ uint32_t fp8_pair(float first, float second) {
  return fp8_pair_here<kFormat>(first, second);
}
#else
template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ uint32_t fp8_pair(float first, float second) {
  return fp8_pair_here<kFormat>(first, second);
}
#endif

// Four values in a word, the first one lowest.
template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ uint32_t fp8_four(float a, float b, float c, float d, float inverse) {
  return fp8_pair<kFormat>(a * inverse, b * inverse) | fp8_pair<kFormat>(c * inverse, d * inverse)
                                                           << 16;
}

// kOwn values of a row.
template <__nv_fp8_interpretation_t kFormat, class T>
__device__ __forceinline__ uint2 fp8_row(const Vec<T, kOwn>& row, float inverse) {
  uint32_t words[2];
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    const float2 a = two_of(row.value + 4 * w), b = two_of(row.value + 4 * w + 2);
    words[w] = fp8_four<kFormat>(a.x, a.y, b.x, b.y, inverse);
  }
  return {words[0], words[1]};
}

// The transpose of bytes goes through a 128x128 array whose row is a column of the tile, in chunks
// of 8 bytes. Chunk y of column c lies at y ^ (c / 8) ^ (c / 4 % 2): no side meets a bank twice.
__device__ __forceinline__ int chunk_place(int column, int y) {
  return column * kTile + ((y ^ (column / kOwn) ^ (column / 4 % 2)) * kOwn);
}

// A thread's chunks of its own columns: those of the first four lie at a constant distance, and
// those of the others.
struct OwnChunks {
  uint8_t *first, *second;

  __device__ __forceinline__ explicit OwnChunks(uint8_t* bytes) {
    const int column = threadIdx.x % kTileX * kOwn, y = threadIdx.x / kTileX;
    first = bytes + chunk_place(column, y);
    second = bytes + chunk_place(column + 4, y) - 4 * kTile;
  }
  __device__ __forceinline__ void put(int c, uint2 words) const {
    *reinterpret_cast<uint2*>((c < 4 ? first : second) + c * kTile) = words;
  }
};

// Reading, a thread has 16 rows of four columns, and eight threads a column.
inline constexpr int kPieces = kTile / 16, kReadColumns = kTile * kPieces / kTileThreads;
static_assert(kReadColumns == 4);

// The first of them, in the tile.
__device__ __forceinline__ int read_row() { return int(threadIdx.x) % kPieces * 16; }
__device__ __forceinline__ int read_column() { return int(threadIdx.x) / kPieces * kReadColumns; }

struct ReadChunks {
  const uint8_t *low, *high;

  __device__ __forceinline__ explicit ReadChunks(const uint8_t* bytes) {
    const int y = read_row() / kOwn;
    low = bytes + chunk_place(read_column(), y);
    high = bytes + chunk_place(read_column(), y + 1);
  }
  __device__ __forceinline__ uint4 get(int c) const {
    const uint2 a = *reinterpret_cast<const uint2*>(low + c * kTile);
    const uint2 b = *reinterpret_cast<const uint2*>(high + c * kTile);
    return {a.x, a.y, b.x, b.y};
  }
};

}  // namespace fusedops
