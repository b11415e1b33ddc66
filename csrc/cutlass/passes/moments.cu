#include "csrc/cutlass/passes/moments.cuh"

namespace fusedops {

const char* join_moments(const JoinMoments& p, const LaunchContext& context) {
  const dim3 grid(static_cast<unsigned>(ceil_div(p.rows, p.rows_per_result)),
                  static_cast<unsigned>(ceil_div(p.cols, int64_t{kMomentX})));
  const cudaError_t status =
      launch_kernel(join_moments_kernel, grid, dim3(kMomentX, kMomentY), 0,
                    static_cast<cudaStream_t>(context.stream), context.overlap, p);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace fusedops
