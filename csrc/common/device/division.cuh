// Integer division on the device, where the hardware's takes a hundred instructions.
#pragma once

#include <cstdint>

#include "csrc/common/int_math.h"

namespace fusedops {

// a / b of numbers that are not negative: 64-bit division where it has to be one.
__device__ __forceinline__ int64_t divide(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}

// Division by a number that the host knows: q = n / divisor for 0 <= n < 2^63 as the high half of a
// product. Granlund and Montgomery, Division by invariant integers using multiplication (1994).
struct Divider {
  int64_t divisor = 1;
  uint64_t magic = 0;
  int shift = 0;

  Divider() = default;
  explicit Divider(int64_t d) : divisor(d) {
    if (d == 1) return;
    while ((uint64_t{1} << (shift + 1)) < static_cast<uint64_t>(d)) ++shift;
    magic = static_cast<uint64_t>((static_cast<unsigned __int128>(1) << (64 + shift)) / d) + 1;
  }
  __device__ __forceinline__ int64_t divide(int64_t n) const {
    return divisor == 1 ? n : static_cast<int64_t>(__umul64hi(n, magic) >> shift);
  }
};

// The same in one product, for 0 <= n < 2^31 and 0 < divisor < 2^31.
struct SmallDivider {
  uint32_t divisor = 1, magic = 1u << 31;
  int shift = 31;

  SmallDivider() = default;
  explicit SmallDivider(int64_t d) : divisor(static_cast<uint32_t>(d)) {
    while ((int64_t{1} << (shift - 31)) < d) ++shift;
    magic = static_cast<uint32_t>(ceil_div(int64_t{1} << shift, d));
  }
  __device__ __forceinline__ uint32_t divide(uint32_t n) const {
    return static_cast<uint32_t>(uint64_t{n} * magic >> shift);
  }
};

}  // namespace fusedops
