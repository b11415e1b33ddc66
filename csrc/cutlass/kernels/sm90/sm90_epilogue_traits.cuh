// What the epilogues of the sm_90a kernels (sm90_epilogue.cuh) are launched with, the sizes of what
// they stage, pairs of 16-bit values, and rows outside of a matrix.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/numeric_types.h>

#include "csrc/cutlass/kernels/hopper/column_norm.cuh"
#include "csrc/cutlass/kernels/hopper/sm90_tma.cuh"
#include "csrc/cutlass/problem.h"

namespace fusedops::sm90 {

struct EpilogueParams {
  CUtensorMap d;       // 3-dimensional: slice, row, column
  CUtensorMap aux;     // pre-activation out, or saved tensor or residual in
  CUtensorMap hidden;  // kGrad: act(saved tensor) out
  const void* bias;    // (N,) or null
  float* column_sums;  // (warpgroups above each other, N): kGrad: sums, or null; kMoments: pairs
  int columns;         // N
  int rows;            // M
  Activation activation;
  bool load_aux;      // whether there is an auxiliary input
  bool store_hidden;  // kGrad, with load_aux
  bool accumulate;    // add to what D holds: of fp32 D, and where adds_halves()
  ColumnNorm norm;    // kNorm; last: what stands before it has fixed places (visitor)
};

// Two values of an output type in one register; kRelu: their maxima with zero, NaN stays.
template <class Element, bool kRelu>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t packed;
  if constexpr (cute::is_same_v<Element, cutlass::bfloat16_t>) {
    if constexpr (kRelu) {
      asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    } else {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    }
  } else if constexpr (kRelu) {
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}
template <class Element>
__device__ __forceinline__ float2 unpack(uint32_t packed) {
  if constexpr (cute::is_same_v<Element, cutlass::bfloat16_t>) {
    return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u)};
  } else {
    __half2 pair;
    memcpy(&pair, &packed, sizeof pair);
    return __half22float2(pair);
  }
}

// Clears a warpgroup's rows from `rows` on: zeros of A gave NaN there where B has an infinity.
template <int kRowBlocks, int kPerRowBlock>
__device__ __forceinline__ void clear_rows(float* acc, int rows) {
  rows -= int(threadIdx.x) % 128 / 32 * 16 + int(threadIdx.x) % 32 / 4;
#pragma unroll
  for (int i = 0; i < kRowBlocks * kPerRowBlock; ++i) {
    const int row = i / kPerRowBlock * 64 + i / 2 % 2 * 8;
    if (row >= rows) acc[i] = 0.0f;
  }
}

// Sizes of what one warpgroup (rows by columns) stores.
template <class Element, int kRows_, int kColumns_, Epilogue kEpilogue>
struct EpilogueTraits {
  using Out = cute::conditional_t<kEpilogue == Epilogue::kAccumulator, float, Element>;
  static constexpr bool kNorm = kEpilogue == Epilogue::kNorm;
  static constexpr bool kReadsAux =
      kEpilogue == Epilogue::kGrad || kEpilogue == Epilogue::kResidual || kNorm;
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr int kPanelColumns = kBoxRowBytes / int(sizeof(Out));
  static constexpr int kPanels = (kColumns + kPanelColumns - 1) / kPanelColumns;
  // A panel has 64 rows, so that the next is staged while one leaves; it has all rows where they
  // have been read together and where the tile has no next panel (1048576x64x64, gelu_tanh: 4 % on
  // H200).
  static constexpr int kPanelRows = kReadsAux || kPanels == 1 ? kRows : 64;
  static constexpr int kParts = kRows / kPanelRows;  // of a panel's columns
  static constexpr int kPanelBytes = kPanelRows * kBoxRowBytes;
  static_assert(kColumns >= kPanelColumns && kColumns % 16 == 0 && kRows % 64 == 0);

  // The last panel of a tile that panels do not divide begins in the one before it and repeats
  // its columns.
  static constexpr bool kWhole = kColumns % kPanelColumns == 0;
  static_assert(kWhole || (!kReadsAux && kEpilogue != Epilogue::kAccumulator));
  static constexpr int first_column(int panel) {
    return panel < kPanels - 1 ? panel * kPanelColumns : kColumns - kPanelColumns;
  }
  static constexpr int repeated(int panel) { return panel * kPanelColumns - first_column(panel); }

  // Panels in staging memory: two, or all where they are read before they are written.
  static constexpr int kRing = kReadsAux || kPanels == 1 ? kPanels : 2;

  // Sums that each column has: kMoments: a mean and a sum of squares about it.
  static constexpr int kSums = kEpilogue == Epilogue::kMoments ? 2 : kEpilogue == Epilogue::kGrad;
  struct Shared {
    alignas(1024) uint8_t staging[kRing][kPanelBytes];
    alignas(16) Element bias[kColumns];
    alignas(16) float sums[kSums ? 4 : 1][kSums ? kColumns * kSums : 1];
    alignas(16) float2 norm[kNorm ? kColumns : 1];  // scale and shift
    uint64_t aux_full;
  };
};

}  // namespace fusedops::sm90
