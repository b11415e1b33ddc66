#include <cub/device/device_radix_sort.cuh>

#include "csrc/cuda/inverted_index/sort_by_key.h"

namespace fusedops {

size_t sort_by_key_bytes(int64_t count, int bits) {
  size_t bytes = 0;
  cub::DoubleBuffer<uint32_t> keys, values;
  cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, values, count, 0, bits);
  return bytes;
}

cudaError_t sort_by_key(void* workspace, size_t bytes, SortBuffers& buffers, int64_t count,
                        int bits, cudaStream_t stream) {
  cub::DoubleBuffer<uint32_t> keys(buffers.keys, buffers.other_keys);
  cub::DoubleBuffer<uint32_t> values(buffers.values, buffers.other_values);
  const cudaError_t error =
      cub::DeviceRadixSort::SortPairs(workspace, bytes, keys, values, count, 0, bits, stream);
  buffers = {keys.Current(), keys.Alternate(), values.Current(), values.Alternate()};
  return error;
}

}  // namespace fusedops
