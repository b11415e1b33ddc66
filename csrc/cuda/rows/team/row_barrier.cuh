// Barriers in shared memory that count threads and bytes, bulk copies that report to them, and the
// blocks of a cluster. Addresses are those of the shared window. Only sm_90 has them: older code
// compiles and never runs them.
#pragma once

#include <cstdint>

#include "csrc/common/device/cache_hint.cuh"
#include "csrc/cuda/rows/team/row_layout.h"

namespace fusedops {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ unsigned cluster_id() {
  unsigned id;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(id));
  return id;
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

__device__ __forceinline__ void init_barrier(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// To other blocks and to bulk copies.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives; the phase ends with the last arrival and the last byte.
__device__ __forceinline__ void expect_bytes(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void wait_for_barrier(unsigned barrier, unsigned parity) {
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

// For bytes that bulk copies bring, and what threads of this block wrote.
// NOTE: the cluster's scope would throw away the first-level cache.
__device__ __forceinline__ void wait_for_bytes(unsigned barrier, unsigned parity) {
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

// Multiples of 16 bytes.
__device__ __forceinline__ void bulk_copy(unsigned to, const void* from, unsigned bytes,
                                          unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(evict_last())
      : "memory");
}
// What threads wrote before goes before what bulk copies will write.
__device__ __forceinline__ void fence_bulk_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A value to the same place in block `rank` of the cluster, and its bytes to that block's barrier.
template <class V>
__device__ __forceinline__ void send_to_block(unsigned to, unsigned barrier, unsigned rank,
                                              const V& value) {
  static_assert(sizeof(V) % 16 == 0);
  unsigned there, barrier_there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(to), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier_there) : "r"(barrier), "r"(rank));
  const unsigned* word = reinterpret_cast<const unsigned*>(&value);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(V) / 16); ++i) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
        "[%5];" ::"r"(there + 16 * i),
        "r"(word[4 * i]), "r"(word[4 * i + 1]), "r"(word[4 * i + 2]), "r"(word[4 * i + 3]),
        "r"(barrier_there)
        : "memory");
  }
}

// The same for one number.
__device__ __forceinline__ void send_to_block(unsigned to, unsigned barrier, unsigned rank,
                                              float value) {
  asm volatile(
      "{\n"
      ".reg .u32 there, there_too;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 there_too, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %3, [there_too];\n"
      "}\n" ::"r"(to),
      "r"(barrier), "r"(rank), "r"(__float_as_uint(value))
      : "memory");
}
__device__ __forceinline__ void send_to_block(unsigned to, unsigned barrier, unsigned rank,
                                              double value) {
  asm volatile(
      "{\n"
      ".reg .u32 there, there_too;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 there_too, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [there], %3, [there_too];\n"
      "}\n" ::"r"(to),
      "r"(barrier), "r"(rank), "l"(__double_as_longlong(value))
      : "memory");
}

#else

__device__ __forceinline__ unsigned cluster_rank() { return 0; }
__device__ __forceinline__ unsigned cluster_id() { return 0; }
__device__ __forceinline__ void cluster_arrive() {}
__device__ __forceinline__ void cluster_wait() {}
__device__ __forceinline__ void cluster_sync() {}
__device__ __forceinline__ void init_barrier(unsigned, int) {}
__device__ __forceinline__ void fence_barrier_init() {}
__device__ __forceinline__ void arrive(unsigned) {}
__device__ __forceinline__ void expect_bytes(unsigned, unsigned) {}
__device__ __forceinline__ void wait_for_barrier(unsigned, unsigned) {}
__device__ __forceinline__ void wait_for_bytes(unsigned, unsigned) {}
__device__ __forceinline__ void bulk_copy(unsigned, const void*, unsigned, unsigned) {}
__device__ __forceinline__ void fence_bulk_copies() {}
template <class V>
__device__ __forceinline__ void send_to_block(unsigned, unsigned, unsigned, const V&) {}

#endif

}  // namespace fusedops
