// Host side of depthwise convolutions on CUDA: which kernel a problem has, and its launch.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <vector>

#include "csrc/common/checks/batch_norm_check.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/batch_norm/batch_norm_host.h"
#include "csrc/cuda/conv/depthwise.cuh"
#include "csrc/cuda/conv/join.cuh"

namespace fusedops::cuda {

// Kernels and strides with kernels of their own; as 16 kernel + stride.
inline constexpr int kAnyDepthwise = 0;
using DepthwiseInstances = Choices<0x31, 0x32, 0x51, 0x52, kAnyDepthwise>;

// Pairs of 16-bit channels at even addresses, square kernels and strides.
inline bool has_pairs(const DepthwiseShape& s, DType dtype,
                      std::initializer_list<const void*> data) {
  bool fits = is_half(dtype) && s.is_square() && s.channels % 2 == 0;
  for (const void* at : data) fits = fits && reinterpret_cast<uintptr_t>(at) % 4 == 0;
  // NOTE: places in an image are numbers of 32 bits in kernels.
  constexpr int64_t kMost = int64_t{1} << 30;
  return fits && s.channels <= kMost / 64 && s.w * s.channels <= kMost &&
         s.out_w * s.channels <= kMost;
}

// Whole eights of channels at addresses of 16 bytes.
inline bool has_eights(const DepthwiseShape& s, std::initializer_list<const void*> data) {
  bool fits = s.channels % 8 == 0;
  for (const void* at : data) fits = fits && reinterpret_cast<uintptr_t>(at) % 16 == 0;
  return fits;
}

// Pairs of channels, 3x3 and 5x5, stride 1 and 2.
inline int depthwise_instance(const DepthwiseShape& s, DType dtype,
                              std::initializer_list<const void*> data) {
  const bool kernel = s.kh == 3 || s.kh == 5, stride = s.stride_h == 1 || s.stride_h == 2;
  constexpr int64_t kMost = int64_t{1} << 30;  // tiles
  const bool fits = has_pairs(s, dtype, data) && kernel && stride &&
                    s.n * ceil_div(s.h + 1, 2) * ceil_div(s.w + 1, 4) <= kMost &&
                    s.n * ceil_div(s.out_h, int64_t{2}) * ceil_div(s.out_w, int64_t{4}) <= kMost;
  return fits ? static_cast<int>(16 * s.kh + s.stride_h) : kAnyDepthwise;
}

// The registers of a kernel's thread as they are given out.
template <auto kKernel>
int registers_of() {
  static const int count = [] {
    cudaFuncAttributes kernel{};
    const bool known = cudaFuncGetAttributes(&kernel, kKernel) == cudaSuccess;
    return known && kernel.numRegs > 0 ? static_cast<int>(round_up(kernel.numRegs, 8)) : 128;
  }();
  return count;
}

// y = conv(x), or its adjoint, with what is behind; all contiguous. Launches.
void launch_depthwise(const LaunchScope& scope, DType dtype, DepthwiseProblem problem);

// 3x3 with stride 2, down columns of results. Launches.
bool takes_columns(const DepthwiseShape& s, DType dtype, std::initializer_list<const void*> data);
void launch_columns(const LaunchScope& scope, DType dtype, const DepthwiseProblem& base);

// Large kernels with stride 1 on Tensor Cores, and their adjoints; without a residual. Launches.
bool takes_band(const DepthwiseShape& s, DType dtype, std::initializer_list<const void*> data);
void launch_band(const LaunchScope& scope, DType dtype, const DepthwiseProblem& p);

inline void launch_join(const LaunchScope& scope, DType dtype, const JoinProblem& p) {
  const dim3 grid(static_cast<unsigned>(ceil_div(p.channels * p.taps, int64_t{32})));
  const bool overlap = scope.facts().code_version >= 90;
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    launch_kernel(join_weight_kernel<DeviceType<D>>, grid, dim3(kJoinThreads), 0, scope.stream(),
                  overlap, p);
  });
}

}  // namespace fusedops::cuda
