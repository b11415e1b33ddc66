// Launches of batch norm in training in clusters.
#include "csrc/common/device/device_types.cuh"
#include "csrc/cuda/batch_norm/batch_norm_cluster_launch.cuh"

namespace fusedops {
namespace {

template <auto kKernel>
cudaError_t launch_clusters(const TrainProblem& problem, int inputs, cudaStream_t stream) {
  if (const cudaError_t status = allow_any_shared_memory<kKernel>()) return status;
  const WalkGrid& grid = problem.pass.grid;
  const dim3 blocks(static_cast<unsigned>(grid.row_blocks * grid.col_blocks));
  const size_t bytes = size_t{16} * kClusterThreads * inputs * problem.slots;
  return launch_cluster_kernel(kKernel, blocks, dim3(kClusterThreads),
                               static_cast<unsigned>(grid.row_blocks), bytes, stream, true,
                               problem);
}

template <class T, bool kAdded>
cudaError_t launch_cluster_forward(const TrainProblem& p, cudaStream_t stream) {
  return launch_clusters<&batch_norm_cluster_kernel<T, kAdded>>(p, 1, stream);
}

template <class T, bool kAdded>
cudaError_t launch_cluster_backward(const TrainProblem& p, cudaStream_t stream) {
  return launch_clusters<&batch_norm_cluster_backward_kernel<T, kAdded>>(p, kAdded ? 3 : 2, stream);
}

template <class T>
void launch_typed(const TrainProblem& problem, bool forward, cudaStream_t stream) {
  with_added(problem.pass, [&]<bool kAdded>() {
    forward ? launch_cluster_forward<T, kAdded>(problem, stream)
            : launch_cluster_backward<T, kAdded>(problem, stream);
  });
}

}  // namespace

void launch_cluster_train(const TrainProblem& problem, DType dtype, bool forward,
                          cudaStream_t stream) {
  if (dtype == DType::kFloat16) {
    launch_typed<__half>(problem, forward, stream);
  } else if (dtype == DType::kBFloat16) {
    launch_typed<__nv_bfloat16>(problem, forward, stream);
  } else {
    launch_typed<float>(problem, forward, stream);
  }
}

}  // namespace fusedops
