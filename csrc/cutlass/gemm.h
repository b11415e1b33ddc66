// The GEMM vocabulary: plain structs shared by selection (host only), the kernel families and the
// ops. No torch, no CUTLASS, no CUDA header: select.cpp and its tests build without a GPU
// toolchain.
#pragma once

#include <cstdint>

#include "common/activation.h"

namespace fusedops {

enum class DType : int8_t { kFloat16, kBFloat16, kFloat32, kFloat64 };
inline constexpr int kNumDTypes = 4;

// How fp32 products are formed: kTf32 rounds operands to TF32, kFp32 keeps fp32 accuracy. Other
// dtypes use kNative.
enum class MathMode : int8_t { kNative, kTf32, kFp32 };

enum class Major : int8_t { kK, kMN };  // the index of an operand that is contiguous in memory

enum class Raster : int8_t { kAuto, kAlongM, kAlongN };

// kFused: d = act(a b + bias). kPreact: the same and preact = a b + bias. kAccumulator: d = a b in
// fp32.
enum class Epilogue : int8_t { kFused, kPreact, kAccumulator };
inline constexpr int kNumEpilogues = 3;

// A (M, K) or B (K, N) operand. Element (i, k) lies at i * ld + k when K is contiguous, at k * ld +
// i otherwise.
struct GemmOperand {
  const void* data = nullptr;
  int64_t ld = 0;
  int64_t batch_stride = 0;  // elements; only with batch > 1
  Major major = Major::kK;
};

// d (M, N) = act(a (M, K) @ b (K, N) + bias (N)); d and preact are row-major with leading dimension
// ldd. batch > 1 runs independent products (split-K slices), kAccumulator only.
struct GemmProblem {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  GemmOperand a, b;
  void* d = nullptr;
  int64_t ldd = 0;
  int64_t d_batch_stride = 0;
  void* preact = nullptr;      // kPreact only
  const void* bias = nullptr;  // (N,) of dtype, or null
  Activation activation = Activation::kNone;
  Epilogue epilogue = Epilogue::kFused;
  DType dtype = DType::kBFloat16;  // of a, b, bias, d, preact; kAccumulator writes d in fp32
  MathMode math = MathMode::kNative;
  bool split_parts =
      false;  // kFp32 only: a and b hold bf16 parts (cuda/split_fp32.h), k counts part columns
  // Order of output tiles: bands of `swizzle` tiles, along M or N (Raster::kAuto lets the scheduler
  // decide).
  int swizzle = 1;
  Raster raster = Raster::kAuto;
};

// Where a launch happens.
struct LaunchContext {
  int device = 0;
  int sm_count = 0;
  bool overlap = false;    // programmatic dependent launch (sm_90 and later)
  void* stream = nullptr;  // cudaStream_t
};

// A compiled kernel: launches or returns the reason why it cannot (null on success).
using GemmRunFn = const char* (*)(const GemmProblem&, const LaunchContext&);

constexpr int64_t dtype_bytes(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

constexpr int64_t operand_bytes(const GemmProblem& problem) {
  return problem.split_parts ? 2 : dtype_bytes(problem.dtype);
}

}  // namespace fusedops
