// The grid of a streaming kernel whose blocks walk over tiles of rows.
#pragma once

#include <algorithm>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/int_math.h"
#include "csrc/common/launch_context.h"

namespace fusedops::thin {

// As many blocks as run at a time, or as there are tiles; of each of `parts` as many.
template <auto kKernel>
cudaError_t grid_of(int threads, int bytes, int64_t tiles, int parts, const LaunchContext& context,
                    unsigned* blocks) {
  int per_sm = 0;
  cudaError_t status = allow_any_shared_memory<kKernel>();
  if (status == cudaSuccess) {
    status =
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kKernel, threads, size_t(bytes));
  }
  const int64_t most = std::max(std::max(per_sm, 1) * context.sm_count / parts, 1);
  *blocks = unsigned(std::min(most, tiles) * parts);
  return status;
}

}  // namespace fusedops::thin
