// Host face of act_backward.cuh: raw pointers, sizes and a stream.
#pragma once

#include "csrc/cutlass/problem.h"

namespace fusedops {

struct ActBackward {
  DType dtype;
  Activation activation;
  int64_t rows, cols;
  const void* dy;  // (rows, cols), row stride dy_stride
  int64_t dy_stride;
  const void* saved = nullptr;  // (rows, cols), row stride saved_stride, or null
  int64_t saved_stride = 0;
  void* dz = nullptr;       // (rows, cols) contiguous, or null: column sums only
  void* dbias = nullptr;    // (cols,), or null
  bool dbias_fp32 = false;  // dbias in fp32 instead of dtype
  void* partial = nullptr;  // workspace of act_backward_workspace() bytes, when dbias is wanted
};

int64_t act_backward_workspace(const ActBackward& problem, int sm_count);

// out (cols,) of dtype = the sums over rows of partial (rows, cols), in a fixed order.
const char* column_sum(const float* partial, int64_t rows, int64_t cols, void* out, DType dtype,
                       const LaunchContext& context);

// Launches; returns null or the reason of the failure.
const char* act_backward(const ActBackward& problem, const LaunchContext& context);

}  // namespace fusedops
