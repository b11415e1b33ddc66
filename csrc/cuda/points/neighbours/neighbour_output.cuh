// From host tensors and options to what the search kernels take.
#pragma once

#include <cmath>
#include <cstring>

#include "csrc/cuda/points/neighbours.cuh"
#include "csrc/cuda/points/neighbours/neighbour_search.h"

namespace fusedops::cuda {

template <class T>
NeighbourOutput<T> output_view(const Neighbours& out, int64_t k) {
  return {static_cast<int64_t*>(out.index.mutable_data_ptr()),
          static_cast<T*>(out.distance.mutable_data_ptr()),
          out.counts ? static_cast<int64_t*>(out.counts->mutable_data_ptr()) : nullptr, k,
          out.pad_first};
}

// The bits of the first distance that is too far. Without a bound that is the one above infinity.
template <class T>
KeyBits<T> limit_bits(double bound, bool closed) {
  const T value = static_cast<T>(bound);
  KeyBits<T> bits;
  std::memcpy(&bits, &value, sizeof(T));
  return bits + (closed || std::isinf(value) ? 1 : 0);
}

// log2 of the warps of a block that keeps a list of `bytes` a warp: four where they fit.
inline int collector_group_bits(const LaunchScope& scope, int bytes) {
  const int room = scope.facts().shared_memory_per_block - (8 << 10);  // beside static arrays
  return 4 * bytes <= room ? 2 : 2 * bytes <= room ? 1 : 0;
}

// Rows beyond a cloud's length are no query's; kernels that skip them start from this.
template <class T>
void fill_unused_rows(const LaunchScope& scope, const NeighbourTensors& in,
                      const NeighbourOutput<T>& out) {
  const Clouds& queries = in.queries.view;
  if (!queries.lengths && !queries.offsets) return;
  const int64_t rows = queries.num_rows();
  const int64_t blocks = std::min<int64_t>(ceil_div(rows * out.k, 256), 8 * scope.facts().sm_count);
  fill_neighbours_kernel<T><<<static_cast<int>(blocks), 256, 0, scope.stream()>>>(out, rows);
}

}  // namespace fusedops::cuda
