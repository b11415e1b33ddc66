// What the neighbour searches share, host and device: how a candidate is ranked, and which
// algorithm runs. No torch.
#pragma once

#include <cstdint>

#include "csrc/common/cloud.h"

namespace fusedops {

inline constexpr int64_t kMaxNeighbours = 1024;

// NOTE: python/fusedops/points/_search.py holds the same codes.
enum class NeighbourAlgorithm : int64_t { kAuto = 0, kBrute = 1, kGrid = 2, kTensor = 3 };
inline constexpr int64_t kNumNeighbourAlgorithms = 4;

// What a search ranks by. kFirst: the lowest indices within the bound, whatever their distance.
enum class Select : int { kNearest = 0, kFirst = 1 };

// What to look for: up to k neighbours with a distance below `bound` (or at it, where closed).
struct NeighbourQuery {
  int64_t k = 0;
  Select select = Select::kNearest;
  int64_t norm = 2;  // distances are sums of squares, or of absolute values (1)
  double bound = 0;  // of the distance as compared, infinity without
  bool closed = false;
};

}  // namespace fusedops
