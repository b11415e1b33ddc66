// Pieces of the FP32 FMA GEMM (simt_gemm.cuh): copying operand tiles to shared memory and reading
// fragments from there.
//
// A tile lies in shared memory as its operand does in global memory, so that every copy is a run of
// contiguous elements: (mn, k) where K is contiguous, (k, mn) otherwise. A fragment is 4 k of 4 or
// 8 mn, read as vectors along whichever is contiguous.
#pragma once

#include <cstdint>

#include "csrc/cutlass/problem.h"

namespace fusedops::simt {

// Copies `elements` <= kWidth floats and zeros the rest of kWidth. With none, `source` may point
// anywhere. NOTE: a part is not copied asynchronously, see thin_tile.cuh.
template <int kWidth>
__device__ __forceinline__ void copy_async(float* shared, const float* source, int elements) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  if (elements % kWidth != 0) {
#pragma unroll 1
    for (int i = 0; i < kWidth; ++i) shared[i] = i < elements ? source[i] : 0.0f;
  } else if constexpr (kWidth == 4) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address),
                 "l"(source), "r"(elements * 4)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(source),
                 "r"(elements * 4)
                 : "memory");
  }
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending groups of this thread are under way.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// A (kMn, kK) tile of A or B in shared memory.
template <int kMn, int kK, Major kMajor>
struct Tile {
  static constexpr bool kAlongK = kMajor == Major::kK;
  static constexpr int kInner = kAlongK ? kK : kMn, kOuter = kAlongK ? kMn : kK;
  static constexpr int kFloats = kMn * kK;

  // NOTE: a warp reads the same k of rows 4 apart, whose 16-byte chunks would all meet in the same
  // banks: rows permute their chunks.
  __device__ __forceinline__ static int offset(int outer, int inner) {
    return outer * kInner + (kAlongK ? inner ^ (outer / 4 % 8 * 4) : inner);
  }
};

// An operand as a block sees it: its tiles follow each other along K.
struct TileSource {
  const float* data;  // first element of the next tile
  int64_t ld;
  int mn_left;  // rows of A, columns of B inside the matrix
  bool wide;    // 16-byte copies; single elements otherwise
};

// Starts the copies of one tile, elements outside the matrix as zeros, and moves on.
template <class Tile, int kThreads, int kWidth>
__device__ __forceinline__ void load_tile_as(const TileSource& source, float* tile, int k_left) {
  constexpr int kAcross = Tile::kInner / kWidth;
  constexpr int kOuterStep = kThreads / kAcross;
  static_assert(kThreads % kAcross == 0 &&
                (Tile::kOuter % kOuterStep == 0 || Tile::kOuter < kOuterStep));
  const int inner = threadIdx.x % kAcross * kWidth, first = threadIdx.x / kAcross;
  const int inner_left = (Tile::kAlongK ? k_left : source.mn_left) - inner;
  const int outer_left = Tile::kAlongK ? source.mn_left : k_left;
  const int elements = max(0, min(kWidth, inner_left));
  const float* data = source.data + first * source.ld + inner;
  if (Tile::kOuter < kOuterStep && first >= Tile::kOuter) return;
  // NOTE: single elements are rare, and too many to unroll.
  constexpr int kUnroll = kWidth == 4 ? 8 : 4;
#pragma unroll kUnroll
  for (int outer = 0; outer < Tile::kOuter; outer += kOuterStep) {
    const int count = first + outer < outer_left ? elements : 0;
    copy_async<kWidth>(tile + Tile::offset(first + outer, inner), data + outer * source.ld, count);
  }
}

template <class Tile, int kK, int kThreads>
__device__ __forceinline__ void load_tile(TileSource& source, float* tile, int k_left) {
  source.wide ? load_tile_as<Tile, kThreads, 4>(source, tile, k_left)
              : load_tile_as<Tile, kThreads, 1>(source, tile, k_left);
  source.data += Tile::kAlongK ? int64_t{kK} : kK * source.ld;
}

// Loads 4 k from `k` on, of 4 mn from `mn` on and, with kGroups = 2, of 4 more mn kGroupStep
// further.
template <class Tile, int kGroups, int kGroupStep>
__device__ __forceinline__ void load_fragment(float (&fragment)[kGroups * 4][4], const float* tile,
                                              int mn, int k) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = mn + g * kGroupStep;
      const int offset =
          Tile::kAlongK ? Tile::offset(row, k) + i * Tile::kInner : Tile::offset(k + i, row);
      const float4 v = *reinterpret_cast<const float4*>(tile + offset);
      const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        (Tile::kAlongK ? fragment[g * 4 + i][j] : fragment[g * 4 + j][i]) = values[j];
      }
    }
  }
}

}  // namespace fusedops::simt
