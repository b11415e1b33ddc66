// The tiles of the fp32 GEMM over parts (sm90_parts.cuh) and where they lie in shared memory.
#pragma once

#include <algorithm>

#include "csrc/common/device/mma.cuh"
#include "csrc/cutlass/configs/unaligned_configs.h"
#include "csrc/cutlass/kernels/hopper/sm90_pipeline.cuh"
#include "csrc/cutlass/kernels/hopper/wgmma.cuh"

namespace fusedops::parts {

inline constexpr int kParts = 3;
inline constexpr int kK = unaligned::kPartTileK;
inline constexpr int kCopiers = 256, kMultipliers = 256, kThreads = kCopiers + kMultipliers;

// The parts of two values, a pair for each part: each is the nearest to what those before leave.
// NOTE: what has no parts (infinity, NaN, what the first part rounds to infinity) gets NaN in one.
__device__ __forceinline__ void part_pair(float first, float second, uint32_t (&parts)[kParts]) {
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    parts[p] = pack_pair<__nv_bfloat16>(first, second);
    const float2 taken = unpack_pair<__nv_bfloat16>(parts[p]);
    first -= taken.x;
    second -= taken.y;
  }
}

// The left tile, kRows by kK in fp32, in lines as the operand has them. Lines permute their units
// of 16 bytes, so that the eight rows and four pairs of K which a warp reads at once lie in
// different banks. Every eighth line has the same permutation.
template <int kRows, Major kMajor>
struct LeftTile {
  static constexpr bool kAlongK = kMajor == Major::kK;
  static constexpr int kLineFloats = kAlongK ? kK : kRows;
  static constexpr int kBytes = kRows * kK * 4;

  static __device__ __forceinline__ int place(int line, int element) {
    return line * kLineFloats + (element ^ (kAlongK ? line % 4 : line / 2 % 4) * 8);
  }
};

// Where a thread reads pairs along K of two rows, 8 below each other: 16 rows by kK of a tile.
template <class Tile>
struct LeftPairs {
  int at[Tile::kAlongK ? kK / 8 : 2];

  __device__ __forceinline__ LeftPairs(int row, int k) {
#pragma unroll
    for (int i = 0; i < int(sizeof(at) / sizeof(int)); ++i) {
      at[i] = Tile::kAlongK ? Tile::place(row, k + i * 8) : Tile::place(k, row + i * 8);
    }
  }
  // The pair of the first row or the second, in the eighth-th eight of K.
  __device__ __forceinline__ float2 pair(const float* tile, int second, int eighth) const {
    if constexpr (Tile::kAlongK) {
      return *reinterpret_cast<const float2*>(tile + at[eighth] + second * 8 * Tile::kLineFloats);
    } else {
      const float* first = tile + at[second] + eighth * 8 * Tile::kLineFloats;
      return {first[0], first[Tile::kLineFloats]};
    }
  }
};

// A part of the right tile as WGMMA reads it: lines of 64 bytes with the 64-byte swizzle where K is
// contiguous, otherwise panels of 64 rows in lines of 128 bytes with the 128-byte swizzle.
template <int kRows, Major kMajor>
struct RightTile {
  static constexpr bool kAlongK = kMajor == Major::kK;
  static constexpr int kLineBytes = kAlongK ? 64 : 128, kPanelBytes = kK * 128;
  static constexpr int kPartBytes = kAlongK ? kRows * kLineBytes : (kRows + 63) / 64 * kPanelBytes;
  static constexpr int kBytes = kParts * kPartBytes;
  static constexpr uint64_t kStep = kAlongK ? wgmma::kStepK : wgmma::kStepRows;  // 16 of K

  // Where the unit-th four elements of a line lie.
  static __device__ __forceinline__ int place(int line, int unit) {
    const int pair = unit / 2, half = unit % 2 * 8;
    if constexpr (kAlongK) return line * kLineBytes + (pair ^ line / 2 % 4) * 16 + half;
    return pair / 8 * kPanelBytes + line * kLineBytes + (pair % 8 ^ line % 8) * 16 + half;
  }
  static __device__ __forceinline__ uint64_t descriptor(uint32_t tile) {
    if constexpr (kAlongK) return wgmma::descriptor<64>(tile);
    return wgmma::descriptor(tile, kPanelBytes);
  }
};

// Where a warp turns 16 x 16 results into rows.
inline constexpr int kStagedLine = 24, kStagedBytes = kMultipliers / 32 * 16 * kStagedLine * 4;

// kM x kN results to a block; two warpgroups multiply, two copy.
template <int kTile, Major kA, Major kB>
struct Shape {
  static constexpr unaligned::Tile kShape = unaligned::kPartTiles[kTile];
  static constexpr int kM = kShape.m, kN = kShape.n;
  static constexpr Major kMajorA = kA, kMajorB = kB;
  using A = LeftTile<kM, kA>;
  using B = RightTile<kN, kB>;
  // NOTE: 96 rows side by side are copied as 128 (Units).
  static constexpr int kValueBytes = (kN == 96 && kB == Major::kMN ? 128 : kN) * kK * 4;
  // Rings: right tiles in parts, left tiles, and right ones as they came. kAhead tiles are on their
  // way, the others are there or multiplied.
  static constexpr int kAhead = 2, kRoom = sm90::shared_budget(1) - 1024 - kStagedBytes;
  static constexpr int kStages = std::min(
      6, (kRoom - kAhead * A::kBytes - (kAhead + 1) * kValueBytes) / (A::kBytes + B::kBytes));
  static constexpr int kLeftStages = kStages + kAhead, kValueStages = kAhead + 1;
  static constexpr int kOfLeft = kStages * B::kBytes;
  static constexpr int kOfValues = kOfLeft + kLeftStages * A::kBytes;
  static constexpr int kOfStaged = kOfValues + kValueStages * kValueBytes;
  static constexpr int kOfBarriers = kOfStaged + kStagedBytes;
  static constexpr int kSharedBytes = kOfBarriers + 2 * kStages * 8;
  static_assert(kM == kMultipliers / 2 && kStages >= 2 && B::kBytes % 1024 == 0);
  // Registers of a thread that multiplies, and of one that copies.
  static constexpr int kManyRegisters = kN == 128 ? 216 : kN == 96 ? 184 : 168;
  static constexpr int kFewRegisters = 256 - kManyRegisters;
};

template <class S>
struct Shared {
  uint32_t start;

  __device__ __forceinline__ uint32_t right(int stage) const {
    return start + stage * S::B::kBytes;
  }
  __device__ __forceinline__ uint32_t left(int stage) const {
    return start + S::kOfLeft + stage * S::A::kBytes;
  }
  __device__ __forceinline__ uint32_t values(int stage) const {
    return start + S::kOfValues + stage * S::kValueBytes;
  }
  __device__ __forceinline__ uint32_t full(int stage) const {
    return start + S::kOfBarriers + stage * 8;
  }
  __device__ __forceinline__ uint32_t empty(int stage) const {
    return full(stage) + S::kStages * 8;
  }
};

}  // namespace fusedops::parts
