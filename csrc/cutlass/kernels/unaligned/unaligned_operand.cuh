// Operands that begin anywhere on their way to the Tensor Cores: 16-byte loads at multiples of 16,
// two for each 16 bytes of an operand, shifted in registers into a tile of shared memory that
// ldmatrix reads.
//
// A tile has lines as its operand does in memory: rows of kK elements of K, or kK lines of K with
// the rows side by side. A thread has the same 16 bytes of every few lines. Those lines are a
// multiple of 8 elements apart, as are tiles, so that one shift serves a thread for all of K.
#pragma once

#include "csrc/common/device/mma.cuh"
#include "csrc/common/device/unaligned.cuh"
#include "csrc/cutlass/configs/unaligned_configs.h"

namespace fusedops::unaligned {

struct Operand {
  const char* data;
  const char* end;  // behind the last element
  int64_t line_bytes;
};

// The first `count` of 8 elements, and zeros.
__device__ __forceinline__ uint4 first_elements(uint4 value, int count) {
  const auto kept = [count](uint32_t word, int first) {
    return count > first + 1 ? word : count > first ? word & 0xffffu : 0u;
  };
  return {kept(value.x, 0), kept(value.y, 2), kept(value.z, 4), kept(value.w, 6)};
}

// kRows of a 16-bit operand by kK, in units of 16 bytes. Lines permute their units, so that neither
// a warp's stores nor the eight lines that a matrix of ldmatrix has meet in the same banks.
template <int kRows, Major kMajor, int kK>
struct OperandTile {
  static constexpr bool kAlongK = kMajor == Major::kK;
  static constexpr int kLines = kAlongK ? kRows : kK;
  static constexpr int kUnits = (kAlongK ? kK : kRows) / 8;  // of a line
  static constexpr int kLineUnits = kUnits;                  // from a line to the next

  static __device__ __forceinline__ int place(int line, int unit) {
    return line * kUnits + (unit ^ (kUnits >= 8 ? line % 8 : line / 2 % 4));
  }

  // 16 rows by 16 of K, as the left operand of an MMA has them.
  static __device__ __forceinline__ void load_left(uint32_t (&r)[4], const uint4* tile, int row,
                                                   int k) {
    const int lane = threadIdx.x % 32;
    if constexpr (kAlongK) {
      load_matrices(r, tile + (place(row + lane % 16, lane / 16) ^ k / 8));
    } else {
      const int first = place(lane % 8 + lane / 16 * 8, lane / 8 % 2);
      load_transposed(r, tile + (first ^ row / 8) + k * kUnits);
    }
  }
  // The same as right operands: the first two registers are of 8 rows, the others of the next 8.
  static __device__ __forceinline__ void load_right(uint32_t (&r)[4], const uint4* tile, int row,
                                                    int k) {
    const int lane = threadIdx.x % 32;
    if constexpr (kAlongK) {
      load_matrices(r, tile + (place(row + lane % 8 + lane / 16 * 8, lane / 8 % 2) ^ k / 8));
    } else {
      load_transposed(r, tile + (place(lane % 16, lane / 16) ^ row / 8) + k * kUnits);
    }
  }
};

// A thread's part of one tile after the other along K, from memory to registers: kRows by kTileK
// elements of 16 bits.
template <int kRows, Major kMajor>
struct Units {
  static constexpr bool kAlongK = kMajor == Major::kK;
  static constexpr int kElements = 8;  // of a unit
  static constexpr int kLines = kAlongK ? kRows : kTileK;
  static constexpr int kUnits = (kAlongK ? kTileK : kRows) / kElements;  // of a line
  static constexpr int kStep = kThreads / kUnits;                        // lines
  static constexpr int kCount = kLines / kStep;
  static_assert(kStep % 8 == 0 && kCount * kStep == kLines);

  const Operand& operand;  // a parameter of the kernel: what it holds takes no registers
  const char* next;        // the first element, in the next tile
  int inside;              // rows of the tile that the operand has
  uint4 low[kCount], high[kCount];

  // The thread's first line, and its unit of every one.
  static __device__ __forceinline__ int line() { return int(threadIdx.x) / kUnits; }
  static __device__ __forceinline__ int unit() { return int(threadIdx.x) % kUnits; }

  // Bytes between a multiple of 16 and the first element, the same for all lines and tiles.
  __device__ __forceinline__ int shift() const {
    return static_cast<int>(reinterpret_cast<uintptr_t>(next) % 16);
  }

  __device__ __forceinline__ Units(const Operand& from_operand, int64_t row, int64_t k, int rows)
      : operand(from_operand), inside(rows) {
    const int64_t first_line = (kAlongK ? row : k) + line(), before = kAlongK ? k : row;
    next = operand.data + first_line * operand.line_bytes + before * 2 + unit() * 16;
#pragma unroll
    for (int i = 0; i < kCount; ++i) low[i] = high[i] = {};
  }

  // Elements of the thread's unit in its i-th line, where so many of K are left.
  __device__ __forceinline__ int count(int i, int k_left) const {
    const int lines = kAlongK ? inside : k_left, length = kAlongK ? k_left : inside;
    return line() + i * kStep < lines ? min(max(length - unit() * kElements, 0), kElements) : 0;
  }

  __device__ __forceinline__ void load(int k_left) {
    const char* end = operand.end;
    const int64_t line_bytes = operand.line_bytes;
    // Lines that the tile has, and elements of the unit in each of them, before K ends.
    const int lines = kAlongK ? (inside - line() + kStep - 1) / kStep : kCount;
    const int elements = kAlongK ? kElements : inside - unit() * kElements;
    const char* unit_at = next - shift();
    const char* last = unit_at + (min(lines, kCount) - 1) * kStep * line_bytes + 32;
    if (k_left >= kTileK && last <= end) {
      const bool wants_low = elements > 0;
      const bool wants_high = shift() + min(elements, kElements) * 2 > 16;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const auto* from = reinterpret_cast<const uint4*>(unit_at + i * kStep * line_bytes);
        if (wants_low && i < lines) low[i] = __ldg(from);
        if (wants_high && i < lines) high[i] = __ldg(from + 1);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const char* from = unit_at + i * kStep * line_bytes;
        const int wanted = count(i, k_left);
        low[i] = wanted > 0 ? load_before(from, end) : uint4{};
        high[i] = shift() + wanted * 2 > 16 ? load_before(from + 16, end) : uint4{};
      }
    }
    next += kAlongK ? kTileK * 2 : kTileK * line_bytes;
  }
};

// 16-bit units on to shared memory, as Tile places them.
template <int kRows, Major kMajor, class Tile = OperandTile<kRows, kMajor, kTileK>>
struct Loader : Units<kRows, kMajor> {
  using Base = Units<kRows, kMajor>;
  using Shared = Tile;
  static constexpr int kTileUnits = kRows * kTileK / 8;
  using Base::Base;

  __device__ __forceinline__ void store(uint4* tile, int k_left) const {
    uint4* to = tile + Shared::place(Base::line(), Base::unit());
#pragma unroll
    for (int i = 0; i < Base::kCount; ++i) {
      uint4 value = bytes_behind(this->low[i], this->high[i], this->shift());
      // NOTE: what lies behind K must not count. What lies behind the rows reaches no output.
      if (Base::kAlongK && k_left < kTileK) value = first_elements(value, this->count(i, k_left));
      to[i * Base::kStep * Shared::kLineUnits] =
          value;  // a multiple of 8 lines: the same permutation
    }
  }
};

}  // namespace fusedops::unaligned
