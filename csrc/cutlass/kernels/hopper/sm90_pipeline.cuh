// What the hand-written sm_90a kernels share: barriers and rings of stages in shared memory,
// results rounded in pairs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace fusedops::sm90 {

// The shared memory of an SM for `per_sm` blocks; a block also takes 1 KB for the system.
constexpr int shared_budget(int per_sm) { return (228 / per_sm - 1) * 1024; }

// ---- barriers ----

__device__ __forceinline__ void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// After the inits, before other threads and copies use the barriers.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
}
__device__ __forceinline__ void expect_bytes(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// At a barrier of any block of the cluster. NOTE: what WGMMA or a bulk copy has read needs no more
// than this; a release at cluster scope would wait for global memory.
__device__ __forceinline__ void arrive_remote(uint32_t barrier, bool arrives = true) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "@p mbarrier.arrive.shared::cluster.b64 _, [%0];\n"
      "}" ::"r"(barrier),
      "r"(uint32_t(arrives))
      : "memory");
}
__device__ __forceinline__ bool is_complete(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done;
}
// kCluster: also acquires what other blocks of the cluster stored.
template <bool kCluster = false>
__device__ __forceinline__ void wait_barrier(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (!done) {
    if constexpr (kCluster) {
      asm volatile(
          "{\n"
          ".reg .pred p;\n"
          "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
          "selp.b32 %0, 1, 0, p;\n"
          "}"
          : "=r"(done)
          : "r"(barrier), "r"(parity)
          : "memory");
    } else {
      asm volatile(
          "{\n"
          ".reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.b32 %0, 1, 0, p;\n"
          "}"
          : "=r"(done)
          : "r"(barrier), "r"(parity)
          : "memory");
    }
  }
}

// Waits for kThreads threads of the block; `id` from 1 to 15.
template <int kThreads>
__device__ __forceinline__ void named_barrier(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

// This thread's writes to shared memory, for WGMMA and bulk copies of whoever it signals next.
// NOTE: without the state space, or with shared::cluster, it also waits for global memory.
__device__ __forceinline__ void fence_async_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Where a thread is in the ring of stages.
struct Place {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// ---- clusters ----

__device__ __forceinline__ uint32_t address_of_rank(uint32_t address, uint32_t rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
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

// ---- registers ----

// a in the lower half.
template <class T>
__device__ __forceinline__ uint32_t rounded(float a, float b) {
  if constexpr (__is_same(T, __half)) {
    const __half2 pair = __floats2half2_rn(a, b);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

}  // namespace fusedops::sm90
