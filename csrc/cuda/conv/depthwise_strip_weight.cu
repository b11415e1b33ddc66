// The gradient of a depthwise convolution's weight on tiles in shared memory: launches.
#include "csrc/cuda/conv/depthwise_strip_host.h"
#include "csrc/cuda/conv/depthwise_strip_weight.cuh"

namespace fusedops::cuda {
namespace {

template <class T, int kKernel, int kStride, int kAcross>
Tensor launch(const LaunchScope& scope, StripWeightProblem& p, const Tensor& like) {
  using Tile = StripTile<kKernel, kStride, false, kAcross>;
  constexpr auto kKernelOf = &depthwise_strip_weight_kernel<T, kKernel, kStride, kAcross>;
  const DepthwiseShape& s = p.base.shape;
  p.grid = strip_grid<Tile>(s, s.out_h, s.out_w, kAcross, registers_of<kKernelOf>(), true,
                            scope.facts());
  const int64_t count = int64_t{p.grid.row_blocks} * s.taps() * s.channels;
  const Tensor partial = new_dense(like, std::vector<int64_t>{count}, ScalarType::Float);
  p.base.partial = partial.mutable_data_ptr();
  allow_any_shared_memory<kKernelOf>();
  launch_kernel(kKernelOf, dim3(p.grid.blocks()), dim3(p.grid.threads), p.grid.bytes(),
                scope.stream(), scope.facts().code_version >= 90, p);
  return partial;
}

}  // namespace

void launch_strip_weight(const LaunchScope& scope, DType dtype, int instance,
                         const DepthwiseWeightProblem& base, const Tensor& dweight) {
  const DepthwiseShape& s = base.shape;
  StripWeightProblem p{base, {}};
  with_half(dtype, [&]<class T>() {
    dispatch(DepthwiseInstances{}, instance, [&]<int kInstance>(Tag<kInstance>) {
      if constexpr (kInstance != kAnyDepthwise) {
        constexpr int kKernel = kInstance / 16, kStride = kInstance % 16;
        const bool one = strips_across<kKernel, kStride, false>(s.out_w) == 1;
        const Tensor partial = one ? launch<T, kKernel, kStride, 1>(scope, p, dweight)
                                   : launch<T, kKernel, kStride, 2>(scope, p, dweight);
        launch_join(scope, dtype,
                    {partial.const_data_ptr(), dweight.mutable_data_ptr(), p.grid.row_blocks,
                     s.channels, s.taps()});
      }
    });
  });
}

}  // namespace fusedops::cuda
