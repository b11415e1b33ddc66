// Barriers in shared memory that count threads and bytes ("mbarrier"), and the barrier of a
// cluster. Addresses are those of the shared window. Only sm_90 has them: older code compiles and
// never runs them.
#pragma once

#include <cstdint>

namespace fusedops {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// ---- barriers of a block ----

__device__ __forceinline__ void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Shows the inits to other blocks of the cluster.
__device__ __forceinline__ void release_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Shows the inits to them and to all copies, before either use the barriers.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// The thread arrives; the phase ends with the last arrival and the last byte.
__device__ __forceinline__ void expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// The thread also acquires what other blocks of the cluster stored.
__device__ __forceinline__ void wait_for_barrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT_%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra WAIT_%=;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// The thread acquires bytes that bulk copies brought, and what threads of this block wrote.
// NOTE: the cluster's scope would throw away the first-level cache.
__device__ __forceinline__ void wait_for_bytes(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT_%=:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra WAIT_%=;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Shared memory that this thread wrote is visible to the bulk copies, and the WGMMA, of whoever it
// signals next. NOTE: without the state space, or with shared::cluster, the fence would also wait
// for global memory.
__device__ __forceinline__ void fence_bulk_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- clusters ----

// Where block `rank` of the cluster has what this block has at `address`.
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t rank) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

#else

__device__ __forceinline__ void init_barrier(uint32_t, int) {}
__device__ __forceinline__ void release_barrier_init() {}
__device__ __forceinline__ void fence_barrier_init() {}
__device__ __forceinline__ void arrive(uint32_t) {}
__device__ __forceinline__ void expect_bytes(uint32_t, uint32_t) {}
__device__ __forceinline__ void wait_for_barrier(uint32_t, uint32_t) {}
__device__ __forceinline__ void wait_for_bytes(uint32_t, uint32_t) {}
__device__ __forceinline__ void fence_bulk_copies() {}
__device__ __forceinline__ uint32_t cluster_address(uint32_t, uint32_t) { return 0; }
__device__ __forceinline__ void cluster_arrive() {}
__device__ __forceinline__ void cluster_wait() {}
__device__ __forceinline__ void cluster_sync() {}

#endif

}  // namespace fusedops
