// Launches csrc/cutlass/kernels/conv/sm90_image_conv.cuh for ops of csrc/cuda.
#pragma once

#include "csrc/common/host/image_conv_problem.h"
#include "csrc/common/host/launch.h"

namespace fusedops::image_conv {

// Whether there is a kernel for it here, and it is launched. Throws where the launch fails.
bool run_image_conv(const char* op, const Call& call, const LaunchScope& scope);

}  // namespace fusedops::image_conv
