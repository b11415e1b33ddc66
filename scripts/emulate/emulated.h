// CUDA's words for a CPU: a thread is a fiber, and a warp's instructions are exchanges between its
// lanes. Included before everything else of a translation unit (see __main__.py).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#undef __shared__
#define __shared__ static  // one block runs at a time
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __global__
#define __global__
#undef __device__
#define __device__
#undef __host__
#define __host__
#undef __forceinline__
#define __forceinline__ inline

namespace emulated {

dim3& thread_index();
dim3& block_index();
dim3& block_size();
dim3& grid_size();
int lane();
unsigned char* shared_memory();
void warp_barrier();
void warpgroup_barrier();
void block_barrier();

// What a lane shows the others of its warp: [which][lane].
uint64_t* shown(int which);

// cp.async: a copy is made when it is waited for, as late as it may be.
void copy_later(void* to, const void* from);
void commit_copies();
// Until all but the last `pending` groups have come; with 0 all copies have.
void wait_for_copies(int pending = 0);

// Runs the body once for every thread of a grid, block after block.
void run(dim3 grid, dim3 block, size_t bytes, const std::function<void()>& body);

template <class V>
V taken_from(V value, int from) {
  static_assert(sizeof(V) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  shown(0)[lane()] = bits;
  warp_barrier();
  bits = shown(0)[from];
  warp_barrier();
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float max_or_nan(float a, float b) { return a != a || b != b ? NAN : std::fmax(a, b); }

}  // namespace emulated

#define threadIdx (emulated::thread_index())
#define blockIdx (emulated::block_index())
#define blockDim (emulated::block_size())
#define gridDim (emulated::grid_size())

using std::max;
using std::min;

template <class V>
V __ldg(const V* from) {
  return *from;
}
template <class V>
V __shfl_sync(unsigned, V value, int from) {
  return emulated::taken_from(value, from);
}
template <class V>
V __shfl_xor_sync(unsigned, V value, int mask) {
  return emulated::taken_from(value, emulated::lane() ^ mask);
}
inline unsigned __ballot_sync(unsigned, bool predicate) {
  emulated::shown(0)[emulated::lane()] = predicate;
  emulated::warp_barrier();
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) bits |= static_cast<unsigned>(emulated::shown(0)[i] & 1) << i;
  emulated::warp_barrier();
  return bits;
}
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline void __syncthreads() { emulated::block_barrier(); }
inline void __syncwarp() { emulated::warp_barrier(); }
inline int __reduce_add_sync(unsigned, int value) {
  for (int mask = 1; mask < 32; mask *= 2)
    value += emulated::taken_from(value, emulated::lane() ^ mask);
  return value;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const int from = selector >> 4 * i & 7;
    result |= static_cast<uint32_t>(bytes >> 8 * from & 0xff) << 8 * i;
  }
  return result;
}
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / std::sqrt(double{x})); }
