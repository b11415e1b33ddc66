#include <algorithm>

#include "csrc/common/grid_limits.h"
#include "csrc/cutlass/kernels/fp32/split_fp32.cuh"

namespace fusedops {

const char* split_fp32(SplitSide side, const SplitSource& source, void* out, int* nonfinite,
                       const LaunchContext& context) {
  const int64_t row_blocks = std::min(ceil_div(source.rows, kSplitRows), kMaxGridY);
  const dim3 grid(ceil_div(source.k, kSplitChunk), row_blocks);
  auto* kernel =
      side == SplitSide::kA ? split_fp32_kernel<SplitSide::kA> : split_fp32_kernel<SplitSide::kB>;
  const cudaError_t status =
      launch_kernel(kernel, grid, dim3(kSplitThreads), 0, static_cast<cudaStream_t>(context.stream),
                    context.overlap, source, static_cast<__nv_bfloat16*>(out), nonfinite);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

const char* repair_nonfinite(const SplitSource& a, const SplitSource& b, const GemmProblem& problem,
                             const int* nonfinite, const LaunchContext& context) {
  const RepairProblem repair{a,
                             b,
                             static_cast<const float*>(problem.bias),
                             static_cast<float*>(problem.d),
                             static_cast<float*>(problem.preact),
                             problem.ldd,
                             problem.activation};
  const cudaError_t status =
      launch_kernel(repair_nonfinite_kernel, dim3(context.sm_count * 8), dim3(256), 0,
                    static_cast<cudaStream_t>(context.stream), context.overlap, repair, nonfinite);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace fusedops
