// Host face of fp8_norm.cuh: an RMS norm of rows that writes FP8.
#pragma once

#include "csrc/cuda/fp8/fp8_quantize.h"

namespace fusedops {

inline constexpr int64_t kFp8NormWidth = 4096;  // elements of a row, at most

// Matrices are (m, k) of 16-bit elements; k is a multiple of 8, rows begin at units of 16 bytes.
struct Fp8Norm {
  Fp8Quantize quantize;      // x, what comes out for its norm, and how
  bool unused = false;       // NOTE: the kernel is scheduled by its parameters' places
  bool wide_weight = false;  // fp32 instead of x's dtype
  float eps = 0;
  const void* residual = nullptr;  // null: none
  int64_t residual_stride = 0;
  const void* weight = nullptr;  // (k,), null: ones
  void* sum = nullptr;           // (m, k) of x's dtype: x + residual
  float* rstd = nullptr;         // (m,)
  int cluster = 1;               // blocks that share 128 rows
};

// Returns null or the reason of the failure.
const char* launch_fp8_norm(Fp8Norm problem, const LaunchContext& context);

}  // namespace fusedops
