// Interpolation by weighted neighbours on CUDA, and its backward.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "csrc/common/checks/group_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/points/grouping/interpolate.cuh"
#include "csrc/cuda/points/grouping/scatter_rows.h"

namespace fusedops::cuda {
namespace {

constexpr int kWideBytes = 16;

template <class T>
Interpolate<T> kernel_arguments(const InterpolateArguments& a) {
  return {.features = static_cast<const T*>(a.features.const_data_ptr()),
          .idx = static_cast<const int64_t*>(a.idx.const_data_ptr()),
          .weights = a.weights.const_data_ptr(),
          .wide_weights = a.weight_dtype != a.dtype,
          .clouds = a.clouds,
          .n = a.rows,
          .queries = a.queries,
          .neighbours = a.neighbours,
          .channels = a.channels};
}

// Calls fn with the dtype and the values per access that rows of features (and of `other`) allow.
template <typename Fn>
void dispatch_access(const InterpolateArguments& a, const void* other, Fn&& fn) {
  const auto aligned = [](const void* p) {
    return reinterpret_cast<uintptr_t>(p) % kWideBytes == 0;
  };
  dispatch_dtype(a.dtype, [&]<DType D>(Tag<D>) {
    constexpr int kWide = kWideBytes / sizeof(DeviceType<D>);
    const bool wide =
        a.channels % kWide == 0 && aligned(a.features.const_data_ptr()) && aligned(other);
    dispatch_bool(wide, [&]<bool kIsWide>(Tag<kIsWide>) {
      fn.template operator()<DeviceType<D>, kIsWide ? kWide : 1>();
    });
  });
}

Tensor interpolate(const Tensor& features,   // (B, N, C)
                   const Tensor& idx,        // (B, M, K)
                   const Tensor& weights) {  // (B, M, K)
  // Guard
  const LaunchScope scope("interpolate", features);

  // Contract, checks
  const InterpolateArguments a = check_interpolate("interpolate", features, idx, weights);

  // Allocate
  const Tensor out = new_dense(features, {a.clouds, a.queries, a.channels});

  // Empty early return
  if (out.numel() == 0) return out;

  // Launch
  dispatch_access(a, out.const_data_ptr(), [&]<class T, int V>() {
    launch_interpolate<T, V>(kernel_arguments<T>(a), static_cast<T*>(out.mutable_data_ptr()),
                             scope.stream());
  });

  // Launch check
  check_launch("interpolate");
  return out;
}

std::tuple<Tensor, Tensor> interpolate_backward(const Tensor& dout,      // (B, M, C)
                                                const Tensor& features,  // (B, N, C)
                                                const Tensor& idx,       // (B, M, K)
                                                const Tensor& weights,   // (B, M, K)
                                                bool need_dfeatures, bool need_dweights) {
  // Guard
  const LaunchScope scope("interpolate_backward", dout);

  // Contract, checks
  const InterpolateArguments a = check_interpolate_backward(dout, features, idx, weights);
  const Tensor rows = dense(dout);

  // Allocate, launch
  Tensor dfeatures = new_dense(features, {0});
  if (need_dfeatures) {
    dfeatures = scatter_rows(scope, {.rows = rows,
                                     .pitch = a.channels,
                                     .first = 0,
                                     .count = a.channels,
                                     .per_row = a.neighbours,
                                     .idx = a.idx,
                                     .weights = a.weights,
                                     .n = a.rows,
                                     .fp32 = false});
  }
  const Tensor dweights = need_dweights ? new_dense(weights, {a.clouds, a.queries, a.neighbours})
                                        : new_dense(weights, {0});
  if (dweights.numel() > 0) {
    dispatch_access(a, rows.const_data_ptr(), [&]<class T, int V>() {
      launch_interpolate_dweights<T, V>(kernel_arguments<T>(a),
                                        static_cast<const T*>(rows.const_data_ptr()),
                                        dweights.mutable_data_ptr(), scope.stream());
    });
  }

  // Launch check
  check_launch("interpolate_backward");
  return {dfeatures, dweights};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("interpolate", FUSEDOPS_BOX(&interpolate));
  m.impl("interpolate_backward", FUSEDOPS_BOX(&interpolate_backward));
}

}  // namespace fusedops::cuda
