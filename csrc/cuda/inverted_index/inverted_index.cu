// Inverted indices, by counting where the array is short, else by sorting.

#include <bit>

#include "csrc/cuda/inverted_index/invert_by_counting.cuh"
#include "csrc/cuda/inverted_index/invert_by_sorting.cuh"
#include "csrc/cuda/inverted_index/inverted_index.h"
#include "csrc/cuda/inverted_index/sort_by_key.h"

namespace fusedops::cuda {
namespace {

// Bytes of the lists, each a multiple of 256.
struct Layout {
  int64_t ranges, list;

  Layout(int64_t destinations, int64_t count)
      : ranges(round_up(destinations * int64_t{sizeof(uint2)}, 256)),
        list(round_up(count * int64_t{sizeof(uint32_t)}, 256)) {}
};

Indices indices_of(const Tensor& idx) {
  return {idx.const_data_ptr(), idx.scalar_type() == ScalarType::Long};
}

Tensor bytes_like(const Tensor& like, int64_t bytes) {
  return new_dense(like, {bytes}, ScalarType::Byte);
}

InvertedIndex by_counting(const LaunchScope& scope, const Tensor& idx, int64_t clouds, int64_t n,
                          const InvertedTensors* into) {
  const int64_t count = idx.numel();
  const Layout layout(clouds * n, count);
  const Tensor memory = bytes_like(idx, into ? 0 : layout.ranges + layout.list);
  auto* base = static_cast<char*>(memory.mutable_data_ptr());
  InvertIndex a{};
  a.idx = indices_of(idx);
  a.clouds = clouds;
  a.n = n;
  a.entries = count / clouds;
  a.ranges = static_cast<uint2*>(into ? into->ranges.mutable_data_ptr() : base);
  a.result = static_cast<uint32_t*>(into ? into->entries.mutable_data_ptr() : base + layout.ranges);
  const int sm_count = scope.facts().sm_count;
  a.slices = invert_slices(clouds, n, a.entries, sm_count);
  const int64_t values = a.slices > 0 ? invert_split_values(clouds, n, a.entries, sm_count) : 0;
  const Tensor split = bytes_like(idx, values * int64_t{sizeof(uint32_t)});
  a.split = static_cast<uint32_t*>(split.mutable_data_ptr());
  a.starts = a.slices > 0 ? a.split + count : nullptr;
  launch_invert_index(a, sm_count, scope.stream());
  return {memory, a.result, a.ranges};
}

InvertedIndex by_sorting(const char* op, const LaunchScope& scope, const Tensor& idx,
                         int64_t clouds, int64_t n, const InvertedTensors* into) {
  const int64_t count = idx.numel(), destinations = clouds * n;
  const int bits = std::bit_width(static_cast<uint64_t>(destinations));
  const size_t sort_bytes = sort_by_key_bytes(count, bits);
  const Layout layout(destinations, count);
  const int64_t lists = layout.ranges + 4 * layout.list;
  const Tensor memory = bytes_like(idx, lists + static_cast<int64_t>(sort_bytes));
  auto* base = static_cast<char*>(memory.mutable_data_ptr());
  auto* ranges = static_cast<uint2*>(into ? into->ranges.mutable_data_ptr() : base);
  const auto part = [&](int i) {
    return reinterpret_cast<uint32_t*>(base + layout.ranges + i * layout.list);
  };
  SortBuffers buffers{part(0), part(1), part(2), part(3)};

  cudaMemsetAsync(ranges, 0, sizeof(uint2) * static_cast<size_t>(destinations), scope.stream());
  launch_inverted_keys(indices_of(idx), clouds, n, count / clouds, buffers.keys, buffers.values,
                       scope.stream());
  const cudaError_t error =
      sort_by_key(base + lists, sort_bytes, buffers, count, bits, scope.stream());
  FUSEDOPS_CHECK(error == cudaSuccess, op, ": CUDA error: ", cudaGetErrorString(error));
  launch_inverted_ranges(buffers.keys, count, destinations, ranges, scope.stream());
  if (!into) return {memory, buffers.values, ranges};
  auto* entries = static_cast<uint32_t*>(into->entries.mutable_data_ptr());
  cudaMemcpyAsync(entries, buffers.values, sizeof(uint32_t) * static_cast<size_t>(count),
                  cudaMemcpyDeviceToDevice, scope.stream());
  return {memory, entries, ranges};
}

}  // namespace

InvertedIndex invert_index(const char* op, const LaunchScope& scope, const Tensor& idx,
                           int64_t clouds, int64_t n, const InvertedTensors* into) {
  const bool counts = can_invert(clouds, n, idx.numel() / clouds, scope.facts().sm_count,
                                 scope.facts().shared_memory_per_block);
  const InvertedIndex inverted = counts ? by_counting(scope, idx, clouds, n, into)
                                        : by_sorting(op, scope, idx, clouds, n, into);
  check_launch(op);  // here: kernels that read lists which nobody wrote would read anywhere
  return inverted;
}

}  // namespace fusedops::cuda
