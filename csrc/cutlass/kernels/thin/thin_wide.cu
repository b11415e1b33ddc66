#include "csrc/common/dispatch.h"
#include "csrc/cutlass/kernels/thin/thin.h"
#include "csrc/cutlass/kernels/thin/thin_grid.cuh"
#include "csrc/cutlass/kernels/thin/thin_wide.cuh"

namespace fusedops::thin {
namespace {

template <class T, int kK, bool kVectors>
const char* launch(const WideParams& params, const LaunchContext& context) {
  constexpr auto kKernel = &wide_kernel<T, kK, kVectors>;
  const WidePlan& plan = params.plan;
  unsigned blocks = 0;
  cudaError_t status =
      grid_of<kKernel>(kWideThreads, plan.bytes(), ceil_div(params.problem.m, plan.rows),
                       plan.parts, context, &blocks);
  if (status == cudaSuccess) {
    status = launch_kernel(kKernel, dim3(blocks), dim3(kWideThreads), size_t(plan.bytes()),
                           static_cast<cudaStream_t>(context.stream), context.overlap, params);
  }
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

template <class T>
const char* launch_typed(const WideParams& params, const LaunchContext& context) {
  const Rows& p = params.problem;
  const bool vectors = reads_units(p.dtype, p.x, p.k);
  return dispatch(Choices<16, 32, 64>{}, params.plan.padded_k, [&]<int kK>(Tag<kK>) {
    return dispatch_bool(vectors, [&]<bool kVectors>(Tag<kVectors>) {
      return launch<T, kK, kVectors>(params, context);
    });
  });
}

}  // namespace

const char* multiply_wide(const Rows& p, const LaunchContext& context) {
  const WideParams params{p, wide_plan(p.dtype, p.n, p.k)};
  if (p.dtype == DType::kFloat16) return launch_typed<__half>(params, context);
  if (p.dtype == DType::kBFloat16) return launch_typed<__nv_bfloat16>(params, context);
  return launch_typed<float>(params, context);
}

}  // namespace fusedops::thin
