// Host face of the segment reductions: raw pointers, sizes and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include "csrc/common/checks/segment_check.h"

namespace fusedops {

struct Segments {
  SegmentShape shape;
  const void* x;
  int64_t x_stride;  // of rows
  const int64_t* offsets;
  void* y;
  int64_t* index;  // max and min only
  bool mean;
  int sm_count;
  bool overlap;  // as for launch_kernel
  void* workspace = nullptr;
};

// Workspace in bytes where it is null, else launches; the launch leaves its errors to
// cudaGetLastError. One file per operator.
int64_t segment_sum(const Segments& segments, cudaStream_t stream);
int64_t segment_max(const Segments& segments, cudaStream_t stream);
int64_t segment_min(const Segments& segments, cudaStream_t stream);

}  // namespace fusedops
