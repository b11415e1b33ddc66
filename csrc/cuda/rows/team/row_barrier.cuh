// The bulk copies of row kernels, which report to the barriers of mbarrier.cuh. Only sm_90 has
// them: older code compiles and never runs them.
#pragma once

#include <cstdint>

#include "csrc/common/device/cache_hint.cuh"
#include "csrc/common/device/cluster.cuh"
#include "csrc/cuda/rows/team/row_layout.h"

namespace fusedops {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Copies a multiple of 16 bytes.
__device__ __forceinline__ void bulk_copy(unsigned to, const void* from, unsigned bytes,
                                          unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(evict_last())
      : "memory");
}

#else

__device__ __forceinline__ void bulk_copy(unsigned, const void*, unsigned, unsigned) {}

#endif

}  // namespace fusedops
