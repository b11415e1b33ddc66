// The stream-K tail: how the last wave of output tiles is shared out where it leaves CTAs without
// a tile. Those (helpers) take the first steps of K of the tiles of the others (owners).
//
// All parts of tiles are in step with each other, so that they share operands in L2. Stream-K
// (Osama et al. 2023, arXiv 2301.03598) balances better, but reads K at as many places as there are
// CTAs: tried on H200, slower than the best kernel without it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fusedops {

// No helpers: no tail, the last wave is as the others.
struct StreamKTail {
  int64_t helpers = 0;
  int64_t parts = 0;       // that helpers take of a tile
  int64_t part_steps = 0;  // of K
};

// `tiles` < `slots`, clusters of both. Several helpers have a part of one tile each, or one helper
// has a part of several tiles, one after the other.
constexpr StreamKTail stream_k_tail(int64_t tiles, int64_t slots, int64_t k_steps) {
  constexpr int64_t kLeastSteps = 8;     // a shorter part costs more than it saves
  constexpr int64_t kExchangeSteps = 2;  // what sending or adding a part takes
  constexpr int64_t kMostParts = 4;      // that an owner adds, one after the other
  const int64_t idle = slots - tiles;
  if (tiles == 0 || idle == 0) return {};
  if (idle < tiles) {
    const int64_t turns = (tiles + idle - 1) / idle;
    const int64_t steps = (k_steps - turns * kExchangeSteps) / (turns + 1);
    return steps < kLeastSteps ? StreamKTail{} : StreamKTail{idle, 1, steps};
  }
  const int64_t parts = std::min({idle / tiles, kMostParts, k_steps / (2 * kLeastSteps) - 1});
  if (parts < 1) return {};
  return {tiles * parts, parts, (k_steps + parts * kExchangeSteps) / (parts + 1)};
}

}  // namespace fusedops
