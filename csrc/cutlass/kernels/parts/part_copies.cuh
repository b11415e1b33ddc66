// The copying warpgroups of the fp32 GEMM over parts (sm90_parts.cuh): the left tile goes to shared
// memory as it is, the right one in parts. Each thread parts the values that it copied itself, so
// that it waits for no other one.
#pragma once

#include "csrc/common/device/async_copy.cuh"
#include "csrc/cutlass/kernels/parts/part_shape.cuh"

namespace fusedops::parts {

// An operand: its lines are rows, or where the rows are side by side, K's.
struct Operand {
  const char* data;
  int64_t line_bytes;
  bool wide;  // every line begins at 16 bytes
};

// The tiles of an operand along K for one tile of results.
template <int kRows, Major kMajor>
struct Source {
  static constexpr bool kAlongK = kMajor == Major::kK;
  static constexpr int kLines = kAlongK ? kRows : kK, kLength = kAlongK ? kK : kRows;
  const char* next;
  int64_t line_bytes;
  int rows;  // of the tile, that the operand has
  bool wide;

  __device__ __forceinline__ Source(const Operand& operand, int64_t row, int64_t k, int rows)
      : line_bytes(operand.line_bytes), rows(rows), wide(operand.wide) {
    next = operand.data + (kAlongK ? row : k) * line_bytes + (kAlongK ? k : row) * 4;
  }
  __device__ __forceinline__ int lines(int k_left) const { return kAlongK ? rows : k_left; }
  __device__ __forceinline__ int length(int k_left) const { return kAlongK ? k_left : rows; }
  __device__ __forceinline__ void advance() { next += kAlongK ? kK * 4 : kK * line_bytes; }
};

__device__ __forceinline__ void store_shared(uint32_t to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}

// The units of four values of a tile that a thread has: the same one of every kStep-th line.
template <class Source>
struct Units {
  // NOTE: 96 values side by side are 24 units of 32.
  static constexpr int kUnits = Source::kLength == 96 ? 32 : Source::kLength / 4;
  static constexpr int kStep = kCopiers / kUnits, kCount = Source::kLines / kStep;
  static_assert(kStep % 8 == 0 && kCount * kStep == Source::kLines);

  static __device__ __forceinline__ int line() { return int(threadIdx.x) / kUnits; }
  static __device__ __forceinline__ int unit() { return int(threadIdx.x) % kUnits; }
};

// Copies a thread's units of a tile to to(i), and zeros for what the operand does not have. NOTE: a
// row that stood for those would be read by all blocks at once.
template <class Source, class To>
__device__ __forceinline__ void copy_units(const Source& source, int k_left, To&& to) {
  using U = Units<Source>;
  const int line = U::line(), unit = U::unit();
  const char* from = source.next + line * source.line_bytes + unit * 16;
  const int inside = min(max(source.length(k_left) - unit * 4, 0), 4);
  const int lines = inside > 0 ? source.lines(k_left) - line : 0;
  if (source.wide && inside % 4 == 0) {
#pragma unroll
    for (int i = 0; i < U::kCount; ++i) {
      copy_async(to(i), from + i * U::kStep * source.line_bytes, i * U::kStep < lines ? 16 : 0);
    }
  } else if (!source.wide) {
#pragma unroll
    for (int i = 0; i < U::kCount; ++i) {
      const char* unit_at = from + i * U::kStep * source.line_bytes;
      const int count = i * U::kStep < lines ? inside : 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        copy_async_cached<4>(to(i) + e * 4, unit_at + e * 4, e < count ? 4 : 0);
      }
    }
  } else {
    // NOTE: a part of 16 bytes is not copied asynchronously, see thin_tile.cuh.
#pragma unroll 1
    for (int i = 0; i < U::kCount; ++i) {
      const auto* unit_at = reinterpret_cast<const float*>(from + i * U::kStep * source.line_bytes);
      const int count = i * U::kStep < lines ? inside : 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) store_shared(to(i) + e * 4, e < count ? unit_at[e] : 0.0f);
    }
  }
}

template <class Tile, class Source>
__device__ __forceinline__ void copy_left(Source& source, uint32_t tile, int k_left) {
  using U = Units<Source>;
  if (source.wide) {
    const uint32_t first = tile + Tile::place(U::line(), U::unit() * 4) * 4;
    copy_units(source, k_left, [&](int i) { return first + i * U::kStep * Tile::kLineFloats * 4; });
  } else {
    // One by one: a warp copies neighbours.
    // NOTE: a step is 8 lines or 2, and a thread's first line below it: one permutation is known.
    constexpr int kStep = kCopiers / Source::kLength;
    const int line = int(threadIdx.x) / Source::kLength, at = int(threadIdx.x) % Source::kLength;
    const char* from = source.next + line * source.line_bytes + at * 4;
    const int lines = at < source.length(k_left) ? source.lines(k_left) - line : 0;
#pragma unroll 8
    for (int i = 0; i < Source::kLines; i += kStep) {
      const int place = Source::kAlongK ? Tile::place(line, at) + i * Tile::kLineFloats
                                        : Tile::place(i, at) + line * Tile::kLineFloats;
      copy_async_cached<4>(tile + place * 4, from + i * source.line_bytes, i < lines ? 4 : 0);
    }
  }
  source.advance();
}

// A thread's units of the right tile lie where only it finds them: 16 bytes from the next thread's.
__device__ __forceinline__ uint32_t own_unit(uint32_t values, int i) {
  return values + (i * kCopiers + threadIdx.x) * 16;
}

template <class Source>
__device__ __forceinline__ void copy_right(Source& source, uint32_t values, int k_left) {
  copy_units(source, k_left, [&](int i) { return own_unit(values, i); });
  source.advance();
}

template <class Tile, class Source>
__device__ __forceinline__ void part_right(uint32_t values, uint32_t tile) {
  using U = Units<Source>;
  if (U::unit() * 4 >= Source::kLength) return;
  const uint32_t first = tile + Tile::place(U::line(), U::unit());
  // NOTE: two at a time: more would take registers that the multiplying threads need.
  constexpr int kBatch = U::kCount % 2 == 0 ? 2 : 1;
#pragma unroll
  for (int start = 0; start < U::kCount; start += kBatch) {
    float v[kBatch][4];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(v[i][0]), "=f"(v[i][1]), "=f"(v[i][2]), "=f"(v[i][3])
                   : "r"(own_unit(values, start + i)));
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      uint32_t low[kParts], high[kParts];
      part_pair(v[i][0], v[i][1], low);
      part_pair(v[i][2], v[i][3], high);
      // NOTE: lines are a multiple of 8 apart, so that the swizzle is one for all.
      const uint32_t to = first + (start + i) * U::kStep * Tile::kLineBytes;
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to + p * Tile::kPartBytes),
                     "r"(low[p]), "r"(high[p])
                     : "memory");
      }
    }
  }
}

}  // namespace fusedops::parts
