// Dynamic shared memory beyond the default limit.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

namespace fusedops {

// The limit belongs to a (kernel, device) pair: raised once for each.
template <auto kKernel>
cudaError_t allow_shared_memory(int device, int bytes) {
  static std::atomic<uint64_t> done{0};
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if (done.load(std::memory_order_relaxed) & bit) return cudaSuccess;
  const cudaError_t status =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status == cudaSuccess) done.fetch_or(bit, std::memory_order_relaxed);
  return status;
}

}  // namespace fusedops
