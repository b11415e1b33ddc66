// The loop nest of an elementwise op: plain arrays, no torch header.
#pragma once

#include <cstdint>

namespace fusedops {

inline constexpr int kMaxDims = 8;      // dimensions that are left after merging
inline constexpr int kMaxOperands = 4;  // out and up to three inputs

// Every element of out once, outermost dimension first. Dimensions of size 1 are dropped, and
// neighbours are merged where every operand steps through them as through one.
struct IterationSpace {
  int64_t count = 0;
  int dims = 0;  // 0: one element
  int64_t sizes[kMaxDims] = {};
  int64_t strides[kMaxOperands][kMaxDims] = {};  // in elements; operand 0 is out; 0: broadcast
};

}  // namespace fusedops
