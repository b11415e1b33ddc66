// What CTAs that share a tile (stream_k_tail.h) send each other.
//
// Helpers write their accumulators to memory of their own and then a flag; the tile's owner adds
// them in the order of K and stores, so that a result depends on shapes only. Owners wait for CTAs
// of lower index alone: those were started before they were.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/cutlass/problem.h"

namespace fusedops::sm90 {

// kFloats: accumulators of a thread; kWarpgroups: that share a tile.
template <int kFloats, int kWarpgroups>
class TileExchange {
 public:
  // warpgroup: which of those that share a tile; barrier: one that it has for itself.
  __device__ TileExchange(const ExchangeSpace& params, int warpgroup, int barrier)
      : p_(params), warpgroup_(warpgroup), barrier_(barrier), thread_(threadIdx.x % 128) {}

  __device__ __forceinline__ void send(const float* acc, int slot) const {
    float4* to = sums_of(slot);
#pragma unroll
    for (int i = 0; i < kFloats; i += 4) {
      __stcg(to + i * 32, make_float4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3]));
    }
    __threadfence();
    sync();
    if (thread_ == 0) {
      asm volatile("st.release.gpu.b64 [%0], %1;" ::"l"(flag_of(slot)), "l"(p_.written) : "memory");
    }
  }

  __device__ __forceinline__ void add(float* acc, int slot) const {
    if (thread_ == 0) {
      uint64_t* flag = flag_of(slot);
      uint64_t found;
      do {
        asm volatile("ld.acquire.gpu.b64 %0, [%1];" : "=l"(found) : "l"(flag) : "memory");
      } while (found != p_.written);
      *flag = 0;  // a graph may launch this again
    }
    sync();
    const float4* from = sums_of(slot);
#pragma unroll
    for (int i = 0; i < kFloats; i += 4) {
      const float4 sum = __ldcg(from + i * 32);
      acc[i] += sum.x;
      acc[i + 1] += sum.y;
      acc[i + 2] += sum.z;
      acc[i + 3] += sum.w;
    }
  }

 private:
  __device__ float4* sums_of(int slot) const {
    return reinterpret_cast<float4*>(p_.sums) +
           int64_t{slot * kWarpgroups + warpgroup_} * (kFloats * 32) + thread_;
  }
  __device__ uint64_t* flag_of(int slot) const { return p_.flags + slot * 2 + warpgroup_; }
  __device__ void sync() const { asm volatile("bar.sync %0, 128;" ::"r"(barrier_) : "memory"); }

  const ExchangeSpace& p_;
  int warpgroup_, barrier_, thread_;
};

}  // namespace fusedops::sm90
