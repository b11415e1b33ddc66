// Host face of reduce_backward.cuh: raw pointers, sizes and a stream.
#pragma once

#include "csrc/common/reduce_gradient.h"

namespace fusedops {

inline constexpr int kMaxReduceBackwardDims = 8;

struct ReduceBackward {
  const void* x;  // contiguous
  void* dx;       // contiguous
  const void* scale;
  const void* shift;  // with the strides of scale, or null
  int64_t count;
  int ndim;
  int64_t size[kMaxReduceBackwardDims], stride[kMaxReduceBackwardDims];  // of scale; 0: broadcast
};

}  // namespace fusedops
