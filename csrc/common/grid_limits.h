// How many blocks a CUDA grid may have.
#pragma once

#include <cstdint>

namespace fusedops {

inline constexpr int64_t kMaxGrid = 0x7fffffff;  // along x
inline constexpr int64_t kMaxGridY = 65535;      // along y or z

}  // namespace fusedops
