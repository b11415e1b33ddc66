// How packed copies of operands lie in memory, for selection and for the kernels that write and
// read them.
#pragma once

#include <cstdint>

namespace fusedops {

// Leading dimension of a packed matrix: cols rounded up to 16 bytes.
constexpr int64_t packed_ld(int64_t cols, int64_t element_bytes) {
  const int64_t vector = 16 / element_bytes;
  return (cols + vector - 1) / vector * vector;
}

}  // namespace fusedops
