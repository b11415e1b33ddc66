// What the hand-written sm_90a kernels share: barriers and rings of stages in shared memory,
// results rounded in pairs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "csrc/common/device/mbarrier.cuh"

namespace fusedops::sm90 {

// The shared memory of an SM for `per_sm` blocks; a block also takes 1 KB for the system.
constexpr int shared_budget(int per_sm) { return (228 / per_sm - 1) * 1024; }

// ---- barriers ----

// Arrives at a barrier of any block of the cluster. NOTE: what WGMMA or a bulk copy has read needs
// no more than this; a release at cluster scope would wait for global memory.
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

__device__ __forceinline__ void fence_async_copies() { fence_bulk_copies(); }

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
