// Copies of whole units of 16 bytes from shared memory into memory that the copy engine makes
// ("cp.async.bulk"). Whoever wrote the shared memory calls fence_bulk_copies (mbarrier.cuh) before
// the barrier behind which another thread starts the copy.
#pragma once

#include "csrc/common/device/mbarrier.cuh"

namespace fusedops {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Both places are multiples of 16 bytes, as `bytes` is.
__device__ __forceinline__ void bulk_store(void* to, const void* shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
// Ends a group of the thread's copies.
__device__ __forceinline__ void commit_bulk_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until all but the last kPending groups have read the shared memory.
template <int kPending>
__device__ __forceinline__ void wait_for_bulk_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

#else

__device__ __forceinline__ void bulk_store(void*, const void*, int) {}
__device__ __forceinline__ void commit_bulk_stores() {}
template <int kPending>
__device__ __forceinline__ void wait_for_bulk_reads() {}

#endif

}  // namespace fusedops
