// Where operands and results begin; host code, no torch.
#pragma once

#include <cstdint>

namespace fusedops {

// Whether an address, or none, is a multiple of 16 bytes: what TMA and vectors ask for.
inline bool aligned16(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

}  // namespace fusedops
