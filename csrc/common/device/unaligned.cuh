// Reads of 16 bytes from addresses that are aligned to an element only.
#pragma once

#include <cstdint>

#include "csrc/common/device/vec.cuh"

namespace fusedops {

// The 16 bytes that begin `bytes` (below 16) behind the first of lo.
__device__ __forceinline__ uint4 bytes_behind(const uint4& lo, const uint4& hi, unsigned bytes) {
  uint32_t w[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) w[i] = bytes & 8 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = bytes & 4 ? w[i + 1] : w[i];
  const unsigned bits = bytes % 4 * 8;
  return {__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
          __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits)};
}

// The 16 bytes at `from`, which is aligned to an element, by aligned loads; false, with nothing
// loaded, where those reach behind `end`.
template <class T>
__device__ __forceinline__ bool load_unaligned(const T* from, const T* end,
                                               Vec<T, 16 / sizeof(T)>& vector) {
  const unsigned bytes = reinterpret_cast<uintptr_t>(from) % 16;
  const auto* aligned = reinterpret_cast<const uint4*>(reinterpret_cast<uintptr_t>(from) - bytes);
  if (reinterpret_cast<const T*>(aligned + (bytes ? 2 : 1)) > end) return false;
  const uint4 lo = __ldg(aligned), hi = bytes ? __ldg(aligned + 1) : uint4{};
  *reinterpret_cast<uint4*>(&vector) = bytes_behind(lo, hi, bytes);
  return true;
}

// The 16 bytes at `unit`, which is a multiple of 16; zeros from `end` on, where nothing is read.
// Both are aligned to 2 bytes.
__device__ __forceinline__ uint4 load_before(const char* unit, const char* end) {
  if (unit + 16 <= end) return __ldg(reinterpret_cast<const uint4*>(unit));
  uint4 value{};
#pragma unroll 1
  for (int i = 14; i >= 0; i -= 2) {
    const bool inside = unit + i + 2 <= end;
    const uint32_t part = inside ? *reinterpret_cast<const uint16_t*>(unit + i) : 0u;
    value.w = value.w << 16 | value.z >> 16;
    value.z = value.z << 16 | value.y >> 16;
    value.y = value.y << 16 | value.x >> 16;
    value.x = value.x << 16 | part;
  }
  return value;
}

}  // namespace fusedops
