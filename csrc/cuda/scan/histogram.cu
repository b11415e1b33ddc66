// bincount and histogram on CUDA.
#include <torch/csrc/stable/library.h>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/checks/scan_check.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/scan/histogram.cuh"

namespace fusedops::cuda {
namespace {

template <class T, class Bins>
void launch(const Tensor& x, const Tensor& out, Bins bins, const LaunchScope& scope) {
  // Config
  constexpr int64_t kVec = 16 / sizeof(T);
  const auto* data = static_cast<const T*>(x.const_data_ptr());
  const int64_t count = x.numel();
  const auto misaligned = reinterpret_cast<uintptr_t>(data) / sizeof(T) % kVec;
  const int64_t head = std::min<int64_t>(count, misaligned ? kVec - misaligned : 0);
  const HistogramPlan plan =
      plan_histogram((count - head) / kVec, bins.bins, scope.facts().sm_count,
                     scope.facts().shared_memory_per_block);
  auto* const result = static_cast<unsigned long long*>(out.mutable_data_ptr());

  // Launch
  cudaMemsetAsync(result, 0, bins.bins * sizeof(*result), scope.stream());
  if (count == 0) return;
  const int copies = plan.copies == 32 || plan.copies == 0 ? plan.copies : kSomeCopies;
  dispatch(Choices<32, 0, kSomeCopies>{}, copies, [&]<int kCopies>(Tag<kCopies>) {
    constexpr auto kernel = &histogram_kernel<T, Bins, kCopies>;
    allow_any_shared_memory<kernel>();
    kernel<<<plan.blocks, kHistogramThreads, plan.shared_bytes, scope.stream()>>>(
        data, result, count, static_cast<int>(head), bins, plan.copies);
  });
}

Tensor bincount(const Tensor& x,  // any shape, integer
                int64_t bins) {
  // Guard
  const LaunchScope scope("bincount", x);

  // Checks
  const Element element = check_integer("bincount", "x", x);
  check_bins("bincount", bins);

  // Allocate
  const Tensor input = dense(x);
  const Tensor out = new_dense(x, {bins}, ScalarType::Long);

  // Config, launch
  dispatch(IntegerElements{}, element, [&]<Element E>(Tag<E>) {
    using T = IntegerType<E>;
    const bool every = std::is_same_v<T, uint8_t> && bins > std::numeric_limits<uint8_t>::max();
    dispatch_bool(every, [&]<bool kEvery>(Tag<kEvery>) {
      launch<T>(input, out, ValueBins < T, kEvery && sizeof(T) == 1 > {static_cast<int>(bins)},
                scope);
    });
  });

  // Launch check
  check_launch("bincount");
  return out;
}

Tensor histogram(const Tensor& x,  // any shape, floating
                 int64_t bins, double low, double high) {
  // Guard
  const LaunchScope scope("histogram", x);

  // Checks
  const DType dtype = check_floating("histogram", "x", x);
  check_bins("histogram", bins);
  check_range("histogram", low, high);

  // Allocate
  const Tensor input = dense(x);
  const Tensor out = new_dense(x, {bins}, ScalarType::Long);

  // Config, launch
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    using C = Compute<T>;
    const RangeBins<T> range{static_cast<int>(bins), static_cast<C>(low), static_cast<C>(high)};
    if (holds_range(range.low, range.high, bins)) {
      launch<T>(input, out, range, scope);
    } else {
      launch<T>(input, out, WideRangeBins<T>{range.bins, low, high}, scope);
    }
  });

  // Launch check
  check_launch("histogram");
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("bincount", FUSEDOPS_BOX(&bincount));
  m.impl("histogram", FUSEDOPS_BOX(&histogram));
}

}  // namespace fusedops::cuda
