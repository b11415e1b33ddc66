// Memory for launches whose CTAs share tiles (tile_sharing.h).
#pragma once

#include "common/launch.h"

namespace fusedops {

// For one launch of a kernel with tiles of so many elements; the tensor owns what the space names.
Tensor make_exchange_space(int64_t tile_elements, const LaunchScope& scope, ExchangeSpace& space);

}  // namespace fusedops
