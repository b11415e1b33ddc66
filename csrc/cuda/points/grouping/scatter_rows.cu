
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/inverted_index/inverted_index.h"
#include "csrc/cuda/points/grouping/scatter_rows.cuh"
#include "csrc/cuda/points/grouping/scatter_rows.h"

namespace fusedops::cuda {
namespace {

constexpr int kWideBytes = 16;
constexpr int kNarrow = 4;  // values per lane where rows have no alignment

template <DType D>
void launch(const LaunchScope& scope, const ScatterRequest& request, const InvertedIndex& sorted,
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
      launch_scatter_rows<Access<T, kIsWide ? kWide : kNarrow, kIsWide, kWeighted>>(
          a, scope.facts().sm_count, scope.stream());
    });
  });
}

}  // namespace

Tensor scatter_rows(const LaunchScope& scope, const ScatterRequest& request) {
  const DType dtype = check_floating("scatter_rows", "rows", request.rows);
  const int64_t clouds = request.idx.size(0);
  const bool wide = request.fp32 && dtype != DType::kFloat64;
  const Tensor out = new_dense(request.rows, {clouds, request.n, request.count},
                               wide ? ScalarType::Float : request.rows.scalar_type());
  if (out.numel() == 0) return out;
  if (request.idx.numel() == 0) {
    cudaMemsetAsync(out.mutable_data_ptr(), 0,
                    static_cast<size_t>(out.numel()) * out.element_size(), scope.stream());
    return out;
  }
  const InvertedIndex sorted = invert_index("scatter_rows", scope, request.idx, clouds, request.n);
  scatter_lists(scope, request, sorted, out);
  return out;
}

void scatter_lists(const LaunchScope& scope, const ScatterRequest& request,
                   const InvertedIndex& lists, const Tensor& out) {
  const DType dtype = check_floating("scatter_rows", "rows", request.rows);
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) { launch<D>(scope, request, lists, out); });
}

}  // namespace fusedops::cuda
