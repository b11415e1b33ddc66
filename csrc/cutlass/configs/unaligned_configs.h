// The tiles of the kernels for operands that begin anywhere (kernels/unaligned), 16-bit ones and,
// as three bf16 parts each, fp32; and what those accept: data for selection (host) and for the
// kernels (device).
#pragma once

#include "csrc/cutlass/configs/alignment.h"
#include "csrc/cutlass/problem.h"

namespace fusedops::unaligned {

// rows of A and of B to a block, and blocks that share an SM.
struct Tile {
  int m, n, per_sm;
};

inline constexpr Tile kTiles[] = {
    {32, 128, 2}, {64, 128, 2}, {128, 128, 1}, {128, 64, 2}, {128, 32, 2},
};
// The same with WGMMA, for 16-bit operands: their numbers go on from those of kTiles.
inline constexpr Tile kHopperTiles[] = {{64, 128, 2}, {128, 128, 1}, {128, 64, 2}};
inline constexpr Tile kPartTiles[] = {{128, 128, 1}, {128, 96, 1}, {128, 64, 1}, {128, 32, 1}};
inline constexpr int kNumTiles = sizeof(kTiles) / sizeof(kTiles[0]);
inline constexpr int kNumHopperTiles = sizeof(kHopperTiles) / sizeof(kHopperTiles[0]);
inline constexpr int kNumPartTiles = sizeof(kPartTiles) / sizeof(kPartTiles[0]);
inline constexpr int kTileK = 64, kPartTileK = 32;
inline constexpr int kThreads = 256;

constexpr bool is_hopper(DType dtype, int tile) {
  return dtype != DType::kFloat32 && tile >= kNumTiles;
}
inline const Tile& tile_of(DType dtype, int tile) {
  return dtype == DType::kFloat32 ? kPartTiles[tile]
         : is_hopper(dtype, tile) ? kHopperTiles[tile - kNumTiles]
                                  : kTiles[tile];
}
constexpr int num_tiles(DType dtype, bool hopper) {
  return dtype == DType::kFloat32 ? kNumPartTiles : kNumTiles + (hopper ? kNumHopperTiles : 0);
}

// The warps of a block along each side of its tile.
constexpr int warps_m(const Tile& tile) { return tile.m > tile.n ? 4 : 2; }
constexpr int warps_n(const Tile& tile) { return kThreads / 32 / warps_m(tile); }

// Whether lines of an fp32 operand have to be copied word by word.
inline bool in_words(const GemmOperand& operand) {
  return operand.ld % 4 != 0 || !aligned16(operand.data);
}

// Why no such kernel can run a problem whose operands are natural ones, or null.
inline const char* refusal(const GemmProblem& p) {
  constexpr int64_t kIntMax = 0x7fffffff;
  constexpr int64_t kMaxSlices = 65535;  // grid.y
  if (p.dtype == DType::kFloat64) return "fp64";
  if (p.dtype == DType::kFloat32 && p.math != MathMode::kFp32) return "TF32 is allowed";
  if (p.epilogue > Epilogue::kAccumulator || p.accumulate) return "no kernel with this epilogue";
  if (p.m < 1 || p.n < 1 || p.k < 1) return "an extent is zero";
  if (p.k > kIntMax - kTileK) return "K is above 2^31 - 65";
  if ((p.m - 1) / 32 + 1 > kIntMax / ((p.n - 1) / 32 + 1)) return "too many tiles";
  if (p.slices < 1 || p.slices > kMaxSlices) return "slices of K are not from 1 to 65535";
  if (p.slices > 1 && p.epilogue != Epilogue::kAccumulator) {
    return "slices of K need the accumulator epilogue";
  }
  return nullptr;
}

}  // namespace fusedops::unaligned
