// Host side of depthwise convolutions down columns of results: which problems take them, and their
// launches.
#pragma once

#include <cstdlib>
#include "csrc/cuda/conv/depthwise_host.h"
#include "csrc/cuda/conv/depthwise_weight.cuh"

namespace fusedops::cuda {

// As DepthwiseInstances.
using ColumnInstances = Choices<0x31, 0x32, 0x51, 0x52, 0x71, kAnyDepthwise>;
inline constexpr int kColumnWeightKernel = 7;

// Where they are faster than strips, or there are none.
inline int column_instance(const DepthwiseShape& s, DType dtype, bool adjoint,
                           std::initializer_list<const void*> data) {
  const bool strided = s.stride_h == 2 && (s.kh == 3 || s.kh == 5) && !adjoint;
  const bool large = s.stride_h == 1 && s.kh == kColumnWeightKernel;
  if (getenv("FUSEDOPS_COLS") && s.stride_h == 1 && s.kh <= 5 && has_pairs(s, dtype, data)) return instance_of(s);
  const int64_t results = s.n * (adjoint ? s.h * s.w : s.out_h * s.out_w);
  const bool fits = has_pairs(s, dtype, data) && results <= int64_t{1} << 30;
  return fits && (strided || large) ? instance_of(s) : kAnyDepthwise;
}

// y = conv(x), or its adjoint, with what is behind. Launches.
void launch_columns(const LaunchScope& scope, DType dtype, int instance,
                    const DepthwiseProblem& base);

// dweight of a convolution of kColumnWeightKernel; base has neither grid nor sums of blocks.
// Launches.
void launch_column_weight(const LaunchScope& scope, DType dtype, const DepthwiseWeightProblem& base,
                          const Tensor& dweight);

}  // namespace fusedops::cuda
