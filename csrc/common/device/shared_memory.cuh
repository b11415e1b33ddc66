// Dynamic shared memory beyond the default limit. The limit belongs to a (kernel, device) pair and
// is raised once for each: a launch by another host thread must never find it lowered.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

namespace fusedops {

// set(): raises the limit of a kernel on `device`.
template <auto kKernel, class Set>
cudaError_t once_per_device(int device, Set&& set) {
  static std::atomic<uint64_t> done{0};
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if (done.load(std::memory_order_relaxed) & bit) return cudaSuccess;
  const cudaError_t status = set();
  if (status == cudaSuccess) done.fetch_or(bit, std::memory_order_relaxed);
  return status;
}

// Lets a kernel that always takes `bytes` have them.
template <auto kKernel>
cudaError_t allow_shared_memory(int device, int bytes) {
  return once_per_device<kKernel>(device, [bytes] {
    return cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  });
}

// Lets a kernel whose need varies have all that a block may have on the current device
// beside the kernel's static part.
template <auto kKernel>
cudaError_t allow_any_shared_memory() {
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device)) return status;
  return once_per_device<kKernel>(device, [device] {
    int limit = 0;
    cudaFuncAttributes kernel{};
    cudaError_t status =
        cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (status == cudaSuccess) status = cudaFuncGetAttributes(&kernel, kKernel);
    if (status != cudaSuccess) return status;
    return cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                limit - static_cast<int>(kernel.sharedSizeBytes));
  });
}

}  // namespace fusedops
