// Programmatic dependent launch: on sm_90 a kernel may start while its predecessor drains, and
// waits before its first global access. Every kernel launched through launch_kernel must call
// wait_for_predecessor() first.
#pragma once

#include <cuda_runtime.h>

#include <utility>

namespace fusedops {

__device__ __forceinline__ void wait_for_predecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Launches on any architecture; `overlap` (compute capability 9 and later) asks for the early
// start. cluster: blocks of a thread block cluster, along x; 1 for none.
template <class... Params, class... Args>
cudaError_t launch_cluster_kernel(void (*kernel)(Params...), dim3 grid, dim3 block,
                                  unsigned cluster, size_t shared_bytes, cudaStream_t stream,
                                  bool overlap, Args&&... args) {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (overlap) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...);
}

template <class... Params, class... Args>
cudaError_t launch_kernel(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                          cudaStream_t stream, bool overlap, Args&&... args) {
  return launch_cluster_kernel(kernel, grid, block, 1, shared_bytes, stream, overlap,
                               std::forward<Args>(args)...);
}

}  // namespace fusedops
