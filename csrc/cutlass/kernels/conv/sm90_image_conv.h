// Host face of sm90_image_conv.cuh: a 3x3 convolution of few channels with what stands behind it,
// and the gradient of its image.
#pragma once

#include <cstdint>

#include "csrc/common/activation.h"
#include "csrc/common/dtype.h"
#include "csrc/common/launch_context.h"
#include "csrc/cutlass/column_norm.h"

namespace fusedops::image_conv {

// y = act((conv(x, weight) + conv_bias - mean) * scale / sqrt(var + eps) + bias), with stride 1 and
// a border of 1; all contiguous, at multiples of 16 bytes.
struct Call {
  DType dtype;
  Activation activation;
  int64_t images, h, w, channels, outputs;
  const void* x;       // (N, H, W, C)
  const void* weight;  // (O, 3, 3, C); transposed: (C, 3, 3, O), of which y is a gradient
  void* y;             // (N, H, W, O)
  bool transposed;
  ColumnNorm norm;
};

inline constexpr int64_t kColumns = 64;  // of a tile
// Channels that fit: the weight of a tile's columns stays in shared memory.
inline constexpr int64_t kMostChannels = 128;

// Whether the kernels take it; addresses are looked at, vectors are not.
bool takes(const Call& call, int sm_count);

// Launches; returns null or the reason of the failure.
using RunFn = const char* (*)(const Call&, const LaunchContext&);

// What sm90_image_conv.cu registers; null where this build has no code for sm_90a.
RunFn find_kernels();
bool register_kernels(RunFn run);

}  // namespace fusedops::image_conv
