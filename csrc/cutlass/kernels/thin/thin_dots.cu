#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cutlass/kernels/thin/thin.h"
#include "csrc/cutlass/kernels/thin/thin_dots.cuh"

namespace fusedops::thin {
namespace {

template <class T, int kRows>
const char* launch(const Dots& p, const DotsPlan& plan, const LaunchContext& context) {
  constexpr auto kKernel = &dots_kernel<T, kRows>;
  cudaError_t status = allow_any_shared_memory<kKernel>();
  if (status == cudaSuccess) {
    status = launch_cluster_kernel(
        kKernel, dim3(unsigned(plan.blocks * plan.cluster)), dim3(kDotThreads),
        unsigned(plan.cluster), size_t(dots_bytes(plan)), static_cast<cudaStream_t>(context.stream),
        context.overlap, DotsParams{p, plan});
  }
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

template <class T>
const char* launch_typed(const Dots& p, const DotsPlan& plan, const LaunchContext& context) {
  return dispatch(Choices<1, kManyDots>{}, plan.rows,
                  [&]<int kRows>(Tag<kRows>) { return launch<T, kRows>(p, plan, context); });
}

}  // namespace

const char* multiply_row(const Dots& p, const DotsPlan& plan, const LaunchContext& context) {
  if (p.dtype == DType::kFloat16) return launch_typed<__half>(p, plan, context);
  if (p.dtype == DType::kBFloat16) return launch_typed<__nv_bfloat16>(p, plan, context);
  return launch_typed<float>(p, plan, context);
}

}  // namespace fusedops::thin
