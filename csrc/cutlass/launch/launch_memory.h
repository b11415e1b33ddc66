// Memory through which the CTAs of one launch agree. The tensors own it. Nobody clears it first:
// see next_mark.
#pragma once

#include "csrc/common/host/launch.h"
#include "csrc/cutlass/problem.h"

namespace fusedops {

// What the CTAs of a stream-K tail (stream_k_tail.h) exchange, for tiles of so many elements.
Tensor make_exchange_space(int64_t tile_elements, const LaunchScope& scope, ExchangeSpace& space);

// The tile counter of a dynamic schedule (wants_dynamic_schedule), in two flags.
Tensor make_tile_counter(const LaunchScope& scope, ExchangeSpace& space);

}  // namespace fusedops
