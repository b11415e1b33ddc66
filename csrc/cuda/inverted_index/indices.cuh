// An array of row numbers of either width.
#pragma once

#include <cstdint>

namespace fusedops {

struct Indices {
  const void* data;
  bool wide;  // int64, else int32

  __device__ __forceinline__ int64_t operator[](int64_t i) const {
    return wide ? __ldg(static_cast<const int64_t*>(data) + i)
                : int64_t{__ldg(static_cast<const int32_t*>(data) + i)};
  }
};

}  // namespace fusedops
