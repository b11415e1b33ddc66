// Host face of fp8_norm.cuh: a norm of rows that writes FP8.
#pragma once

#include "csrc/cuda/fp8/fp8_quantize.h"

namespace fusedops {

// Rows are scaled by 1x128 or not wanted, the transpose by 128x128 or not wanted.
// Matrices are (m, k) of 16-bit elements; k is a multiple of 8, rows begin at units of 16 bytes.
struct Fp8Norm {
  Fp8Quantize quantize;  // x, what comes out for its norm, and how
  bool rms = false;
  bool wide_parameters = false;  // fp32 instead of x's dtype
  float eps = 0;
  const void* residual = nullptr;  // null: none
  int64_t residual_stride = 0;
  const void *weight = nullptr, *bias = nullptr;  // (k,), null: ones and zeros
  void* sum = nullptr;                            // (m, k) of x's dtype: x + residual
  float *mean = nullptr, *rstd = nullptr;         // (m,); mean of no RMS norm
};

// words: 16 bytes for each row. Returns null or the reason of the failure.
const char* launch_fp8_norm(const Fp8Norm& problem, void* words, const LaunchContext& context);

}  // namespace fusedops
