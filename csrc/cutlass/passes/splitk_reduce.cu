#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cutlass/passes/splitk_reduce.cuh"
#include "csrc/cutlass/passes/splitk_reduce.h"

namespace fusedops {
namespace {

template <class T, class Out, int kVec>
cudaError_t launch(const SplitKReduce& p, const LaunchContext& context) {
  const int64_t blocks = ceil_div(p.elements, int64_t{kSplitKReduceThreads} * kVec);
  return launch_kernel(splitk_reduce_kernel<T, Out, kVec>, dim3(blocks), dim3(kSplitKReduceThreads),
                       0, static_cast<cudaStream_t>(context.stream), context.overlap, p);
}

template <class T>
cudaError_t launch(const SplitKReduce& p, bool fp32_out, const LaunchContext& context) {
  const bool vector =
      p.cols % 4 == 0 && (reinterpret_cast<uintptr_t>(p.d) | reinterpret_cast<uintptr_t>(p.preact) |
                          reinterpret_cast<uintptr_t>(p.partial)) %
                                 16 ==
                             0;
  if (fp32_out) {
    return vector ? launch<T, float, 4>(p, context) : launch<T, float, 1>(p, context);
  }
  return vector ? launch<T, T, 4>(p, context) : launch<T, T, 1>(p, context);
}

}  // namespace

const char* splitk_reduce(const GemmProblem& problem, const float* partial, int64_t slices,
                          const LaunchContext& context) {
  const SplitKReduce p{partial,           slices,    problem.m * problem.n, problem.n,
                       problem.bias,      problem.d, problem.preact,        problem.activation,
                       problem.accumulate};
  const bool fp32_out = problem.epilogue == Epilogue::kAccumulator;
  const cudaError_t status = dispatch_dtype(
      problem.dtype, [&]<DType D>(Tag<D>) { return launch<DeviceType<D>>(p, fp32_out, context); });
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace fusedops
