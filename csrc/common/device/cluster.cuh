// Messages between the blocks of a thread block cluster. Only sm_90 has clusters: older code
// compiles and never runs them.
#pragma once

#include <cstdint>

#include "csrc/common/device/mbarrier.cuh"

namespace fusedops {

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

// Writes a value to the same place in block `rank` of the cluster, and reports its bytes to that
// block's barrier.
template <class V>
__device__ __forceinline__ void send_to_block(unsigned to, unsigned barrier, unsigned rank,
                                              const V& value) {
  static_assert(sizeof(V) % 16 == 0);
  const unsigned there = cluster_address(to, rank), barrier_there = cluster_address(barrier, rank);
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

// Does the same for one number.
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
template <class V>
__device__ __forceinline__ void send_to_block(unsigned, unsigned, unsigned, const V&) {}

#endif

}  // namespace fusedops
