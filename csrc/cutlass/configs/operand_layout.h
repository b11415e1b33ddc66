// How operands lie in memory that are no dense matrix of their dtype: packed copies, and fp32 split
// into bf16 parts. For selection and for the kernels that write and read them.
#pragma once

#include <cstdint>

namespace fusedops {

// Leading dimension of a packed matrix: cols rounded up to 16 bytes.
constexpr int64_t packed_ld(int64_t cols, int64_t element_bytes) {
  const int64_t vector = 16 / element_bytes;
  return (cols + vector - 1) / vector * vector;
}

// x = p1 + p2 + p3 exactly (8 significant bits each). a * b keeps the products whose parts sum to
// at most 4: a1 b1 + a1 b2 + a2 b1 + a2 b2 + a1 b3 + a3 b1; what is dropped is below 2^-24 of |a
// b|.
inline constexpr int kSplitProducts = 6;
// Per chunk of K the six products stand side by side along K, smallest first, so that one chain of
// MMAs adds them.
inline constexpr int kSplitChunk = 64;

inline constexpr int64_t split_columns(int64_t k) {
  return (k + kSplitChunk - 1) / kSplitChunk * kSplitChunk * kSplitProducts;
}

}  // namespace fusedops
