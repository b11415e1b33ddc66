// Host face of fp8_norm.cuh: a norm of rows that writes FP8.
#pragma once

#include "csrc/cuda/fp8/fp8_quantize.h"

namespace fusedops {

// Of matrices (m, k) of 16-bit elements, k a multiple of 8, whose rows begin at units of 16 bytes.
struct Fp8Norm {
  Fp8Quantize quantize;  // x, what comes out for its norm, and how
  bool rms = false;
  bool wide_parameters = false;  // fp32 instead of x's dtype
  float eps = 0;
  const void* residual = nullptr;  // null: none
  int64_t residual_stride = 0;
  const void* weight = nullptr;  // (k,), null: ones
  const void* bias = nullptr;    // (k,), null: zeros
  void* sum = nullptr;           // (m, k) of x's dtype: x + residual
  float* mean = nullptr;         // (m,), null: not wanted
  float* rstd = nullptr;         // (m,)
  int cluster = 1;               // blocks that share 128 rows
};

// Whether a cluster of blocks on the device holds 128 rows of k elements.
bool takes_fp8_norm(int64_t k, const LaunchContext& context);

// Returns null or the reason of the failure.
const char* launch_fp8_norm(Fp8Norm problem, const LaunchContext& context);

}  // namespace fusedops
