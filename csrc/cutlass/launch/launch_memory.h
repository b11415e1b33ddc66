// Memory through which the CTAs of one launch agree. The tensors own it. Nobody clears it first:
// see next_mark.
#pragma once

#include "csrc/common/host/launch.h"
#include "csrc/cutlass/problem.h"

namespace fusedops {

// Where CTAs share tiles (stream_k_tail.h) of so many elements.
Tensor make_exchange_space(int64_t tile_elements, const LaunchScope& scope, ExchangeSpace& space);

// Where CTAs take tiles (takes_tiles): two flags.
Tensor make_tile_counter(const LaunchScope& scope, ExchangeSpace& space);

}  // namespace fusedops
