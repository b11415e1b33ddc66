// Host face of sm90_pointwise_conv.cuh: a 1x1 convolution of few channels with what stands behind
// it, in one kernel that reads the norm's vectors as they are.
#pragma once

#include <cstdint>

#include "csrc/common/activation.h"
#include "csrc/common/dtype.h"
#include "csrc/common/launch_context.h"
#include "csrc/cutlass/column_norm.h"

namespace fusedops::pointwise_conv {

// y = act((x @ weight.T + conv_bias - mean) * scale / sqrt(var + eps) + bias + residual); all
// contiguous, at multiples of 16 bytes.
struct Call {
  DType dtype;
  Activation activation;
  int64_t m, n, k;
  const void* x;         // (M, K)
  const void* weight;    // (N, K)
  const void* residual;  // (M, N), or null
  void* y;               // (M, N)
  ColumnNorm norm;
};

inline constexpr int64_t kMostK = 512;
inline constexpr int kLeastColumns = 64;  // of a tile

// Whether the kernels take it; addresses are looked at, vectors are not.
bool takes(const Call& call, int sm_count);

// Launches; returns null or the reason of the failure.
using RunFn = const char* (*)(const Call&, const LaunchContext&);

// What sm90_pointwise_conv.cu registers; null where this build has no code for sm_90a.
RunFn find_kernels();
bool register_kernels(RunFn run);

}  // namespace fusedops::pointwise_conv
