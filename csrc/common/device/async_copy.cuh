// Copies from memory into shared memory that a thread asks for and does not wait for ("cp.async").
// Places are addresses of the shared window; what has arrived only this thread sees before the next
// barrier. cache_hint.cuh has the copies that the L2 cache is told to keep.
#pragma once

#include <cstdint>

#include "csrc/common/device/mbarrier.cuh"

namespace fusedops {

// 16 bytes, past the first-level cache.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The first `bytes` of them, then zeros: of no bytes `from` is not read.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

// kBytes (4, 8 or 16), through the first-level cache.
template <int kBytes>
__device__ __forceinline__ void copy_async_cached(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes)
               : "memory");
}
// The first `bytes` of them, then zeros.
template <int kBytes>
__device__ __forceinline__ void copy_async_cached(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes),
               "r"(bytes)
               : "memory");
}

// Ends a group of the thread's copies.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until all but the last kPending groups have arrived.
template <int kPending = 0>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// Until all copies have, of whatever group.
__device__ __forceinline__ void wait_for_all_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace fusedops
