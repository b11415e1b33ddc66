// Host side of depthwise convolutions down columns of results: which problems take them, and their
// launches.
#pragma once

#include <cstdlib>

#include "csrc/cuda/conv/depthwise_host.h"
#include "csrc/cuda/conv/depthwise_weight.cuh"

namespace fusedops::cuda {

// As DepthwiseInstances.
using ColumnInstances = Choices<0x32, 0x71, kAnyDepthwise>;
inline constexpr int kColumnWeightKernel = 7;

// 3x3 of stride 2 with whole eights of channels, and 7x7 of stride 1 with pairs.
inline int column_instance(const DepthwiseShape& s, DType dtype, bool adjoint,
                           std::initializer_list<const void*> data) {
  const int instance = instance_of(s);
  bool fits = has_pairs(s, dtype, data) && (instance == 0x71 || (instance == 0x32 && !adjoint));
  if (instance == 0x32) fits = fits && has_eights(s, data);
  const int64_t results = s.n * (adjoint ? s.h * s.w : s.out_h * s.out_w);
  return fits && results <= int64_t{1} << 30 ? instance : kAnyDepthwise;
}

// y = conv(x), or its adjoint, with what is behind. Launches.
void launch_columns(const LaunchScope& scope, DType dtype, int instance,
                    const DepthwiseProblem& base);

// dweight of a convolution of kColumnWeightKernel; base has neither grid nor sums of blocks.
// Launches.
void launch_column_weight(const LaunchScope& scope, DType dtype, const DepthwiseWeightProblem& base,
                          const Tensor& dweight);

}  // namespace fusedops::cuda
