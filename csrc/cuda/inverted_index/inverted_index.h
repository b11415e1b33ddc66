// Host side of an inverted index: which entries of an index array name each row.
#pragma once

#include <vector_types.h>

#include "csrc/common/host/launch.h"

namespace fusedops::cuda {

// The entries of destination d are entries[ranges[d].x] to entries[ranges[d].y - 1], ascending;
// what lies in `entries` outside of all ranges is undefined.
struct InvertedIndex {
  Tensor memory;
  const uint32_t* entries;
  const uint2* ranges;
};

// Where an inverted index goes that others read, too: int32, (count,) and (clouds * n, 2).
struct InvertedTensors {
  Tensor entries, ranges;
};

// idx (clouds, entries), int32 or int64, contiguous, neither empty nor beyond 2^31 - 1 elements:
// entry b * entries + i belongs to destination b * n + idx[b, i], or to none where that is no row
// of n. There are at most 2^32 - 2 destinations. `op` is named in errors,
// those of the launches as well. The result is in `into`, where that is given.
InvertedIndex invert_index(const char* op, const LaunchScope& scope, const Tensor& idx,
                           int64_t clouds, int64_t n, const InvertedTensors* into = nullptr);

}  // namespace fusedops::cuda
