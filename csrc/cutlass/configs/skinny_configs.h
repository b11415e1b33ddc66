// The kernels for few rows of A (sm90_skinny.cuh), and what they accept: data for selection
// (host) and for sm90_skinny.cu (device).
#pragma once

#include <limits>

#include "csrc/cutlass/configs/sm80_configs.h"

namespace fusedops {

namespace skinny {

inline constexpr int64_t kMaxRows = 128;  // of A

// rows: of B to a block (tile_n). per_sm: blocks that the shared memory of an SM is for (tile_k):
// deep pipelines, or several blocks and early ones of the next launch. cluster_n: the blocks of a
// cluster take the same rows of B and split K. A kernel is compiled for several numbers of rows of
// A up to tile_m.
constexpr GemmConfig config(int rows, int cluster, int per_sm) {
  constexpr unsigned kVariants = variant_bit(Epilogue::kFused, Major::kK, Major::kK) |
                                 variant_bit(Epilogue::kPreact, Major::kK, Major::kK);
  return {int(kMaxRows), rows, per_sm, 1, cluster, Schedule::kMultistage, kVariants};
}

}  // namespace skinny

inline constexpr GemmConfig kSkinnyConfigs[] = {
    skinny::config(64, 1, 1),  skinny::config(64, 1, 2),  skinny::config(64, 1, 3),
    skinny::config(64, 2, 1),  skinny::config(64, 2, 2),  skinny::config(64, 2, 3),
    skinny::config(128, 1, 1), skinny::config(128, 1, 2), skinny::config(128, 2, 1),
    skinny::config(128, 2, 2), skinny::config(192, 1, 1), skinny::config(192, 2, 1),
    skinny::config(64, 4, 1),  skinny::config(64, 4, 2),  skinny::config(64, 8, 1),
    skinny::config(64, 8, 2),  skinny::config(128, 4, 1), skinny::config(128, 8, 1),
};
inline constexpr int kNumSkinnyConfigs = sizeof(kSkinnyConfigs) / sizeof(kSkinnyConfigs[0]);

// Why no skinny kernel can run this problem, or null.
inline const char* skinny_refusal(const GemmProblem& p) {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max() / 16;  // blocks, and rounding up
  if (p.m > skinny::kMaxRows) return "more than 128 rows of A";
  if (p.dtype != DType::kFloat16 && p.dtype != DType::kBFloat16) return "neither fp16 nor bf16";
  if (p.a.major != Major::kK || p.b.major != Major::kK) return "an operand is not K-contiguous";
  if (p.epilogue != Epilogue::kFused && p.epilogue != Epilogue::kPreact) {
    return "no kernel with this epilogue";
  }
  if (p.slices != 1) return "no kernel over slices";
  if (p.m < 1 || p.n < 1 || p.k < 1) return "an extent is zero";
  if (p.n > kLimit || p.k > kLimit) return "an extent is too large";
  if (!sm80_readable(p, 16)) return "an operand or its rows are not 16-byte aligned";
  return nullptr;
}

}  // namespace fusedops
