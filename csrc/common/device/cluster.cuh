// Thread block clusters: how many a device holds, and messages between the blocks of one. Only
// sm_90 has them: older code compiles and never runs them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/common/device/mbarrier.cuh"

namespace fusedops {

// How many clusters of so many blocks the current device holds at once; 0 where it refuses them,
// which leaves an error.
inline int resident_clusters(const void* kernel, int blocks, int threads, int64_t shared_bytes) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  const cudaError_t status = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  return status == cudaSuccess ? clusters : 0;
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
