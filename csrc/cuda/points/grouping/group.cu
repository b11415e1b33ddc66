// Grouping on CUDA: gathers of rows by index, and the backward.
#include <torch/csrc/stable/library.h>

#include "csrc/common/checks/group_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/points/grouping/group.cuh"
#include "csrc/cuda/points/grouping/scatter_rows.h"

namespace fusedops::cuda {
namespace {

const int64_t* index_pointer(const Tensor& tensor) {
  return static_cast<const int64_t*>(tensor.const_data_ptr());
}

const void* pointer_or_null(const std::optional<Tensor>& tensor) {
  return tensor ? tensor->const_data_ptr() : nullptr;
}

template <class Access>
void copy_rows(const GroupArguments& a, const Tensor& out, int64_t row_bytes, cudaStream_t stream) {
  launch_group_copy<Access>({.features = static_cast<const Access*>(a.features->const_data_ptr()),
                             .idx = index_pointer(a.idx),
                             .out = static_cast<Access*>(out.mutable_data_ptr()),
                             .clouds = a.clouds,
                             .n = a.rows,
                             .entries = a.groups * a.neighbours,
                             .width = row_bytes / static_cast<int64_t>(sizeof(Access))},
                            stream);
}

// The widest access that a row and its place allow.
void copy_features(const GroupArguments& a, const Tensor& out, cudaStream_t stream) {
  const int64_t bytes = a.channels * static_cast<int64_t>(out.element_size());
  const auto fits = [&](int64_t access) {
    return bytes % access == 0 &&
           reinterpret_cast<uintptr_t>(a.features->const_data_ptr()) % access == 0;
  };
  if (fits(16)) return copy_rows<uint4>(a, out, bytes, stream);
  if (fits(8)) return copy_rows<uint2>(a, out, bytes, stream);
  if (fits(4)) return copy_rows<uint32_t>(a, out, bytes, stream);
  copy_rows<uint16_t>(a, out, bytes, stream);
}

void group_with_coordinates(const GroupArguments& a, const Tensor& out, cudaStream_t stream) {
  dispatch_dtype(a.dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    launch_group_rows<T>({.features = static_cast<const T*>(pointer_or_null(a.features)),
                          .points = pointer_or_null(a.points),
                          .centers = pointer_or_null(a.centers),
                          .wide_points = a.point_dtype != a.dtype,
                          .idx = index_pointer(a.idx),
                          .out = static_cast<T*>(out.mutable_data_ptr()),
                          .clouds = a.clouds,
                          .n = a.rows,
                          .groups = a.groups,
                          .neighbours = a.neighbours,
                          .channels = a.channels,
                          .dim = a.dim},
                         stream);
  });
}

Tensor group(const std::optional<Tensor>& features,   // (B, N, C)
             const Tensor& idx,                       // (B, M, K)
             const std::optional<Tensor>& points,     // (B, N, D)
             const std::optional<Tensor>& centers) {  // (B, M, D)
  // Guard
  const LaunchScope scope("group", idx);

  // Contract, checks
  const GroupArguments a = check_group(features, idx, points, centers);

  // Allocate
  const Tensor out = new_dense(idx, {a.clouds, a.groups, a.neighbours, a.dim + a.channels},
                               scalar_type_of(a.dtype));

  // Empty early return
  if (out.numel() == 0) return out;

  // Launch
  if (points) {
    group_with_coordinates(a, out, scope.stream());
  } else {
    copy_features(a, out, scope.stream());
  }

  // Launch check
  check_launch("group");
  return out;
}

Tensor group_backward(const Tensor& dout,  // (B, M, K, C)
                      const Tensor& idx,   // (B, M, K)
                      int64_t n, int64_t first, int64_t count, bool fp32) {
  // Guard
  const LaunchScope scope("group_backward", dout);

  // Checks
  check_group_backward(dout, idx, n, first, count);

  // Contract, allocate, launch
  const Tensor out = scatter_rows(scope, {.rows = dense(dout),
                                          .pitch = dout.size(3),
                                          .first = first,
                                          .count = count,
                                          .per_row = 1,
                                          .idx = dense(idx),
                                          .weights = std::nullopt,
                                          .n = n,
                                          .fp32 = fp32});

  // Launch check
  check_launch("group_backward");
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("group", FUSEDOPS_BOX(&group));
  m.impl("group_backward", FUSEDOPS_BOX(&group_backward));
}

}  // namespace fusedops::cuda
