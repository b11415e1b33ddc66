// Depthwise convolutions on tiles in shared memory: launches.
#include "csrc/cuda/conv/depthwise_strip_host.h"

namespace fusedops::cuda {
namespace {

template <class T, int kKernel, int kStride, bool kAdjoint, int kAcross>
void launch(const LaunchScope& scope, const DepthwiseProblem& p, int64_t height, int64_t width) {
  using Tile = StripTile<kKernel, kStride, kAdjoint, kAcross>;
  constexpr auto kKernelOf = &depthwise_strip_kernel<T, kKernel, kStride, kAdjoint, kAcross>;
  const StripGrid grid = strip_grid<Tile>(p.shape, height, width, kAcross,
                                          registers_of<kKernelOf>(), false, scope.facts());
  allow_any_shared_memory<kKernelOf>();
  launch_kernel(kKernelOf, dim3(grid.blocks()), dim3(grid.threads), grid.bytes(), scope.stream(),
                scope.facts().code_version >= 90, StripProblem{p, grid});
}

}  // namespace

void launch_strips(const LaunchScope& scope, DType dtype, int instance, DepthwiseProblem p) {
  const DepthwiseShape& s = p.shape;
  const int64_t height = p.adjoint ? s.h + s.pad_h % s.stride_h : s.out_h;
  const int64_t width = p.adjoint ? s.w + s.pad_w % s.stride_w : s.out_w;
  with_half(dtype, [&]<class T>() {
    dispatch(DepthwiseInstances{}, instance, [&]<int kInstance>(Tag<kInstance>) {
      if constexpr (kInstance != kAnyDepthwise) {
        dispatch_bool(p.adjoint, [&]<bool kAdjoint>(Tag<kAdjoint>) {
          constexpr int kKernel = kInstance / 16, kStride = kInstance % 16;
          if (strips_across<kKernel, kStride, kAdjoint>(width) == 1) {
            launch<T, kKernel, kStride, kAdjoint, 1>(scope, p, height, width);
          } else {
            launch<T, kKernel, kStride, kAdjoint, 2>(scope, p, height, width);
          }
        });
      }
    });
  });
}

}  // namespace fusedops::cuda
