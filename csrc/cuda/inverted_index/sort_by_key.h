// Stable radix sort of (key, value) pairs by CUB; one compiled instance for all who need it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace fusedops {

// Two buffers of keys and of values; the sort leaves its result in the ones it returns.
struct SortBuffers {
  uint32_t *keys, *other_keys;
  uint32_t *values, *other_values;
};

size_t sort_by_key_bytes(int64_t count, int bits);

// Sorts by the low `bits` of the keys; swaps the buffers so that keys and values are the result.
cudaError_t sort_by_key(void* workspace, size_t bytes, SortBuffers& buffers, int64_t count,
                        int bits, cudaStream_t stream);

}  // namespace fusedops
