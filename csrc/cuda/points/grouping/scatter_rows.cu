#include <torch/csrc/stable/ops.h>

#include <bit>

#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/grid_limits.h"
#include "csrc/cuda/points/grouping/invert_index.cuh"
#include "csrc/cuda/points/grouping/scatter_rows.cuh"
#include "csrc/cuda/points/grouping/scatter_rows.h"

namespace fusedops::cuda {
namespace {

constexpr int kWideBytes = 16;
constexpr int kNarrow = 4;  // values per lane where rows have no alignment

// Entries of idx by destination.
struct SortedEntries {
  Tensor memory;
  const uint32_t* entries;
  const uint2* ranges;
};

// Bytes of the lists, each a multiple of 256.
struct Layout {
  int64_t ranges, list;

  Layout(int64_t destinations, int64_t count)
      : ranges(round_up(destinations * int64_t{sizeof(uint2)}, 256)),
        list(round_up(count * int64_t{sizeof(uint32_t)}, 256)) {}
};

Tensor bytes_like(const Tensor& like, int64_t bytes) {
  return torch::stable::new_empty(like, {bytes}, ScalarType::Byte);
}

SortedEntries count_entries(const LaunchScope& scope, const Tensor& idx, int64_t n) {
  const int64_t clouds = idx.size(0), count = idx.numel();
  const Layout layout(clouds * n, count);
  const Tensor memory = bytes_like(idx, layout.ranges + 3 * layout.list);
  auto* base = static_cast<char*>(memory.mutable_data_ptr());
  InvertIndex a{};
  a.idx = static_cast<const int64_t*>(idx.const_data_ptr());
  a.clouds = clouds;
  a.n = n;
  a.entries = count / clouds;
  a.ranges = reinterpret_cast<uint2*>(base);
  a.result = reinterpret_cast<uint32_t*>(base + layout.ranges);
  a.placed = reinterpret_cast<uint2*>(base + layout.ranges + layout.list);
  launch_invert_index(a, scope.facts().sm_count, scope.stream());
  return {memory, a.result, a.ranges};
}

SortedEntries sort_entries(const LaunchScope& scope, const Tensor& idx, int64_t n) {
  const int64_t clouds = idx.size(0), count = idx.numel(), destinations = clouds * n;
  const int bits = std::bit_width(static_cast<uint64_t>(destinations));
  const size_t sort_bytes = sort_by_key_bytes(count, bits);
  const Layout layout(destinations, count);
  const int64_t lists = layout.ranges + 4 * layout.list;
  const Tensor memory = bytes_like(idx, lists + static_cast<int64_t>(sort_bytes));
  auto* base = static_cast<char*>(memory.mutable_data_ptr());
  auto* ranges = reinterpret_cast<uint2*>(base);
  const auto part = [&](int i) {
    return reinterpret_cast<uint32_t*>(base + layout.ranges + i * layout.list);
  };
  SortBuffers buffers{part(0), part(1), part(2), part(3)};

  cudaMemsetAsync(ranges, 0, sizeof(uint2) * static_cast<size_t>(destinations), scope.stream());
  const int64_t entries = count / clouds;
  const dim3 grid(static_cast<unsigned>(ceil_div(entries, kScatterThreads)),
                  static_cast<unsigned>(std::min(clouds, kMaxGridY)));
  scatter_keys_kernel<<<grid, kScatterThreads, 0, scope.stream()>>>(
      static_cast<const int64_t*>(idx.const_data_ptr()), clouds, n, entries, buffers.keys,
      buffers.values);
  const cudaError_t error =
      sort_by_key(base + lists, sort_bytes, buffers, count, bits, scope.stream());
  FUSEDOPS_CHECK(error == cudaSuccess, "scatter_rows: CUDA error: ", cudaGetErrorString(error));
  scatter_ranges_kernel<<<static_cast<unsigned>(ceil_div(count, kScatterThreads)), kScatterThreads,
                          0, scope.stream()>>>(buffers.keys, count, destinations, ranges);
  return {memory, buffers.values, ranges};
}

template <DType D>
void launch(const LaunchScope& scope, const ScatterRequest& request, const SortedEntries& sorted,
            const Tensor& out) {
  using T = DeviceType<D>;
  ScatterRows<T> a{};
  a.rows = static_cast<const T*>(request.rows.const_data_ptr());
  if (request.weights) {
    a.weights = request.weights->const_data_ptr();
    a.wide_weights = request.weights->scalar_type() != request.rows.scalar_type();
  }
  a.entries = sorted.entries;
  a.ranges = sorted.ranges;
  a.out = out.mutable_data_ptr();
  a.out_fp32 = request.fp32 && D != DType::kFloat64;
  a.pitch = request.pitch;
  a.first = request.first;
  a.count = request.count;
  a.destinations = request.idx.size(0) * request.n;
  a.per_row = static_cast<unsigned>(request.per_row);
  constexpr int kWide = kWideBytes / sizeof(T);
  const auto aligned = [](int64_t values) { return values % kWide == 0; };
  const bool wide = aligned(a.pitch) && aligned(a.first) && aligned(a.count) &&
                    reinterpret_cast<uintptr_t>(a.rows) % kWideBytes == 0;
  dispatch_bool(wide, [&]<bool kIsWide>(Tag<kIsWide>) {
    dispatch_bool(a.weights != nullptr, [&]<bool kWeighted>(Tag<kWeighted>) {
      launch_scatter_rows<Access<T, kIsWide ? kWide : kNarrow, kIsWide, kWeighted>>(a,
                                                                                    scope.stream());
    });
  });
}

}  // namespace

Tensor scatter_rows(const LaunchScope& scope, const ScatterRequest& request) {
  const DType dtype = check_floating("scatter_rows", "rows", request.rows);
  const int64_t clouds = request.idx.size(0);
  const bool wide = request.fp32 && dtype != DType::kFloat64;
  const Tensor out =
      torch::stable::new_empty(request.rows, {clouds, request.n, request.count},
                               wide ? ScalarType::Float : request.rows.scalar_type());
  if (out.numel() == 0) return out;
  if (request.idx.numel() == 0) {
    cudaMemsetAsync(out.mutable_data_ptr(), 0,
                    static_cast<size_t>(out.numel()) * out.element_size(), scope.stream());
    return out;
  }
  const bool counts = can_invert(clouds, request.n, request.idx.numel() / clouds,
                                 scope.facts().sm_count, scope.facts().shared_memory_per_block);
  const SortedEntries sorted = counts ? count_entries(scope, request.idx, request.n)
                                      : sort_entries(scope, request.idx, request.n);
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) { launch<D>(scope, request, sorted, out); });
  return out;
}

}  // namespace fusedops::cuda
