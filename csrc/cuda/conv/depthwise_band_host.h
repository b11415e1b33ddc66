// Host side of depthwise convolutions on Tensor Cores: which problems take them, and their launch.
#pragma once

#include "csrc/cuda/conv/depthwise_host.h"

namespace fusedops::cuda {

using BandKernels = Choices<3, 5, 7>;

// Stride 1, whole eights of channels.
inline bool takes_band(const DepthwiseShape& s, DType dtype,
                       std::initializer_list<const void*> data) {
  const bool kernel = s.kh == 3 || s.kh == 5 || s.kh == 7;
  // NOTE: places in an image and tiles are numbers of 32 bits there.
  const bool small = s.n * ceil_div(s.h > s.out_h ? s.h : s.out_h, int64_t{2}) *
                         ceil_div(s.w > s.out_w ? s.w : s.out_w, int64_t{8}) <
                     int64_t{1} << 30;
  return kernel && s.stride_h == 1 && small && has_pairs(s, dtype, data) && has_eights(s, data);
}

// y = conv(x), or its adjoint, with the norm and the activation behind; no residual. Launches.
void launch_band(const LaunchScope& scope, DType dtype, const DepthwiseProblem& problem);

}  // namespace fusedops::cuda
