// The shapes of the FP32 FMA GEMM (simt_gemm.cuh): how a tile is divided among warps, lanes and
// registers.
#pragma once

#include <algorithm>

#include "csrc/cutlass/configs/sm80_configs.h"
#include "csrc/cutlass/kernels/simt/simt_tile.cuh"

namespace fusedops::simt {

// ---- compile-time description ----

// A thread owns groups_m x groups_n groups of 4 x 4 outputs, a warp lanes_m x lanes_n threads, and
// each of `slices` sets of warps the whole tile, over its share of K.
struct Shape {
  int groups_m, groups_n, lanes_m, lanes_n, slices, stages;
  int middle;  // K tiles whose sums are added up before they join the master sums; 0: one
};

// NOTE: at most 99 KB of shared memory per block, the limit of 8.6 and 8.9.
constexpr Shape shape_of(int config) {
  switch (config) {
    case sm80::kFp32_128x128: return {2, 2, 4, 8, 1, 3, 0};  // 96 KB, chains of 32
    case sm80::kFp32_64x64: return {2, 2, 4, 8, 4, 3, 0};    // 96 KB, chains of 16
    case sm80::kFp32_8x64: return {1, 1, 2, 16, 8, 5, 8};    // 90 KB, chains of 8
    default: return {1, 1, 16, 2, 8, 5, 8};                  // kFp32_64x8, the same
  }
}

template <int kConfig, Major kA, Major kB>
struct Gemm {
  static constexpr GemmConfig kTile = kSm80Configs[kConfig];
  static constexpr Shape kShape = shape_of(kConfig);
  static constexpr Major kMajorA = kA, kMajorB = kB;
  static constexpr int kK = kTile.tile_k;
  using TileA = Tile<kTile.tile_m, kK, kA>;
  using TileB = Tile<kTile.tile_n, kK, kB>;

  static constexpr int kGroups = kShape.groups_m * kShape.groups_n;
  static constexpr int kStepM = kShape.lanes_m * 4, kStepN = kShape.lanes_n * 4;  // of groups
  static constexpr int kWarpM = kStepM * kShape.groups_m, kWarpN = kStepN * kShape.groups_n;
  static constexpr int kWarpsM = kTile.tile_m / kWarpM, kWarpsN = kTile.tile_n / kWarpN;
  static constexpr int kSliceThreads = kWarpsM * kWarpsN * 32;
  static constexpr int kThreads = kSliceThreads * kShape.slices;
  static constexpr int kMinBlocks = kGroups == 1 ? 2 : 1;
  static constexpr int kStageFloats = TileA::kFloats + TileB::kFloats;
  static constexpr int kExchangeFloats =
      kShape.slices > 1 ? kShape.slices * kTile.tile_m * kTile.tile_n : 0;
  static constexpr int kSharedBytes = 4 * std::max(kShape.stages * kStageFloats, kExchangeFloats);
  static_assert(kShape.lanes_m * kShape.lanes_n == 32 && kThreads == 256);
  static_assert(kShape.slices == 1 || kShape.slices >= kGroups);
  static_assert(kSharedBytes <= 99 * 1024);
};

// ---- a thread's place ----

template <class G>
struct Place {
  int slice, m, n;  // its first output, inside the tile

  // NOTE: neighbouring lanes differ in n, the next pair in m: shared memory then serves a 16-byte
  // read of either operand to half a warp at once.
  __device__ __forceinline__ Place() {
    constexpr int kPairsN = G::kShape.lanes_n / 2;
    const int lane = threadIdx.x % 32;
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    const int lane_n = lane % 2 + lane / 4 % kPairsN * 2;
    const int lane_m = lane / 2 % 2 + lane / (4 * kPairsN) * 2;
    slice = warp / (G::kWarpsM * G::kWarpsN);
    m = warp % G::kWarpsM * G::kWarpM + lane_m * 4;
    n = warp / G::kWarpsM % G::kWarpsN * G::kWarpN + lane_n * 4;
  }
};

// ---- a thread's sums ----

template <class G>
struct Sums {
  static constexpr int kM = G::kShape.groups_m * 4, kN = G::kShape.groups_n * 4;
  float value[kM][kN] = {};

  __device__ __forceinline__ void add(const Sums& other) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) value[i][j] += other.value[i][j];
    }
  }
};

}  // namespace fusedops::simt
