// The kernels of the sm_80 family, mma.sync or FP32 FMA under cp.async copies, and what each
// accepts: data for selection (host) and for instances/{sm80,simt}_*.cu (device). Every variant of
// a config is one kernel: the epilogues differ at run time only.
#pragma once

#include <algorithm>

#include "csrc/cutlass/configs/config.h"

namespace fusedops {

namespace sm80 {

inline constexpr unsigned kEveryVariant = (1u << (4 * kNumEpilogues)) - 1;

// Index into kSm80Configs, named after what it serves. Word: TF32 and fp64. Fp32: FP32 FMA
// (simt_gemm.cuh), the last two for matrix-vector products.
enum Config : int {
  kHalf128x256,
  kHalf256x128,
  kHalf128x128,
  kHalf128x64,
  kHalf64x128,
  kHalf64x64,
  kTf32_128x256,
  kTf32_128x128,
  kFp64_128x64,
  kWord64x64,
  kFp32_128x128,
  kFp32_64x64,
  kFp32_8x64,
  kFp32_64x8,
};

}  // namespace sm80

inline constexpr GemmConfig kSm80Configs[] = {
    {128, 256, 32, 1, 1, Schedule::kMultistage, sm80::kEveryVariant},
    {256, 128, 32, 1, 1, Schedule::kMultistage, sm80::kEveryVariant},
    {128, 128, 32, 1, 1, Schedule::kMultistage, sm80::kEveryVariant},
    {128, 64, 32, 1, 1, Schedule::kMultistage, sm80::kEveryVariant},
    {64, 128, 32, 1, 1, Schedule::kMultistage, sm80::kEveryVariant},
    {64, 64, 64, 1, 1, Schedule::kMultistage, sm80::kEveryVariant},
    {128, 256, 16, 1, 1, Schedule::kMultistage, sm80::kEveryVariant},
    {128, 128, 16, 1, 1, Schedule::kMultistage, sm80::kEveryVariant},
    {128, 64, 16, 1, 1, Schedule::kMultistage, sm80::kEveryVariant},
    {64, 64, 16, 1, 1, Schedule::kMultistage, sm80::kEveryVariant},
    {128, 128, 32, 1, 1, Schedule::kMultistage, sm80::kEveryVariant},
    {64, 64, 64, 1, 1, Schedule::kMultistage, sm80::kEveryVariant},
    {8, 64, 64, 1, 1, Schedule::kMultistage, sm80::kEveryVariant},
    {64, 8, 64, 1, 1, Schedule::kMultistage, sm80::kEveryVariant},
};
inline constexpr int kNumSm80Configs = sizeof(kSm80Configs) / sizeof(kSm80Configs[0]);

// Which kernels exist, in all layouts and epilogues.
constexpr bool sm80_compiled(int config, DType dtype, MathMode math) {
  const bool tf32 = config == sm80::kTf32_128x256 || config == sm80::kTf32_128x128;
  const bool fp32 = config >= sm80::kFp32_128x128;
  const bool fp64 = config == sm80::kFp64_128x64;
  const bool word = config == sm80::kWord64x64;
  if (dtype == DType::kFloat64) return math == MathMode::kNative && (fp64 || word);
  if (dtype != DType::kFloat32) return math == MathMode::kNative && config <= sm80::kHalf64x64;
  return (math == MathMode::kTf32 && (tf32 || word)) || (math == MathMode::kFp32 && fp32);
}

// The narrowest global access a config can fall back to, in bytes: every pointer, leading
// dimension and contiguous K must be a multiple of it. 16-byte accesses are used
// where they can.
constexpr int64_t sm80_access_bytes(int config, DType dtype) {
  if (dtype == DType::kFloat64) return 8;
  return config == sm80::kHalf64x64 || config >= sm80::kWord64x64 ? 4 : 16;
}

// Whether an operand can be read in accesses of `bytes`; `extent` is M of A, N of B.
// NOTE: K must be whole accesses where it is contiguous, since every loaded K counts. A ragged M or
// N may be read past its end as long as that stays inside the leading dimension: it only reaches
// masked outputs.
inline bool sm80_operand_readable(const GemmProblem& problem, const GemmOperand& operand,
                                  int64_t extent, int64_t bytes) {
  const int64_t elements = std::max<int64_t>(1, bytes / dtype_bytes(problem.dtype));
  const bool k_major = operand.major == Major::kK;
  const int64_t contiguous = k_major ? problem.k : extent;
  const bool many = (k_major ? extent : problem.k) > 1;
  return reinterpret_cast<uintptr_t>(operand.data) % bytes == 0 &&
         (!many || operand.ld % elements == 0) &&
         (contiguous % elements == 0 || (!k_major && many));
}

inline bool sm80_readable(const GemmProblem& problem, int64_t bytes) {
  return sm80_operand_readable(problem, problem.a, problem.m, bytes) &&
         sm80_operand_readable(problem, problem.b, problem.n, bytes);
}

// Why a config's kernel cannot run this problem, or null. kWord64x64 and kFp32* take every operand
// that has a unit stride.
inline const char* sm80_refusal(int config, const GemmProblem& problem) {
  constexpr int64_t kIntMax = 0x7fffffff;
  constexpr int64_t kMaxSlices = 65535;  // grid.y
  if (!sm80_compiled(config, problem.dtype, problem.math)) {
    return "no kernel of this tile for this dtype and math mode";
  }
  const GemmConfig& tile = kSm80Configs[config];
  if (problem.m < 1 || problem.n < 1 || problem.k < 0 || problem.slices < 1) {
    return "M, N and slices must be positive";
  }
  if (problem.k > kIntMax) return "K is above 2^31 - 1";
  const int64_t tiles_m = (problem.m - 1) / tile.tile_m + 1;
  const int64_t tiles_n = (problem.n - 1) / tile.tile_n + 1;
  if (tiles_m > kIntMax / tiles_n) return "more than 2^31 - 1 output tiles";
  if (problem.slices > kMaxSlices) return "slices of K are above 65535";
  if (problem.slices > 1 && problem.epilogue != Epilogue::kAccumulator) {
    return "slices of K need the accumulator epilogue";
  }
  if (problem.epilogue == Epilogue::kPreact && problem.preact == nullptr) {
    return "the preact epilogue needs a preact buffer";
  }
  if (problem.epilogue > Epilogue::kAccumulator || problem.accumulate) {
    return "the epilogue exists for WGMMA only";
  }
  if (!sm80_readable(problem, sm80_access_bytes(config, problem.dtype))) {
    return "an operand's pointer, leading dimension or contiguous K is not a multiple "
           "of the kernel's access width";
  }
  return nullptr;
}

}  // namespace fusedops
