// Checks of a batch of point clouds, for the CPU and the CUDA side of every point op; fakes repeat
// the texts in python/fusedops/_fakes/cloud.py.
#pragma once

#include <optional>

#include "csrc/common/checks/tensor_check.h"
#include "csrc/common/cloud.h"

namespace fusedops {

// What a cloud's three arguments are called in messages.
struct CloudNames {
  const char* points = "points";
  const char* lengths = "lengths";
  const char* offsets = "offsets";
};

// Contiguous tensors and the view of them; hold it as long as a kernel may read the view.
struct CloudTensors {
  Tensor points;
  std::optional<Tensor> lengths;
  std::optional<Tensor> offsets;
  DType dtype;
  Clouds view;
};

// int64, on the device of `like`.
inline void check_index(const char* op, const char* name, const Tensor& tensor,
                        const char* like_name, const Tensor& like) {
  FUSEDOPS_CHECK(same_device(tensor, like), op, ": ", name, " must be on ", device_string(like),
                 " like ", like_name, "; got ", device_string(tensor));
  FUSEDOPS_CHECK(tensor.scalar_type() == ScalarType::Long, op, ": ", name,
                 " must have dtype int64; got ", dtype_name(tensor.scalar_type()));
}

// (size,) of int64 on the device of `like`.
inline void check_index_vector(const char* op, const char* name, const Tensor& tensor, int64_t size,
                               const char* like_name, const Tensor& like) {
  check_index(op, name, tensor, like_name, like);
  FUSEDOPS_CHECK(tensor.dim() == 1 && tensor.size(0) == size, op, ": ", name, " must have shape (",
                 size, ",); got ", shape_string(tensor));
}

inline const int64_t* index_data(const std::optional<Tensor>& tensor) {
  return tensor ? static_cast<const int64_t*>(tensor->const_data_ptr()) : nullptr;
}

// Padded points (B, N, D) with or without lengths (B,), or packed points (P, D) with offsets
// (B + 1,).
inline CloudTensors check_clouds(const char* op, const Tensor& points,
                                 const std::optional<Tensor>& lengths,
                                 const std::optional<Tensor>& offsets,
                                 const CloudNames& names = {}) {
  const DType dtype = check_floating(op, names.points, points);
  Clouds view;
  if (offsets) {
    FUSEDOPS_CHECK(!lengths, op, ": ", names.lengths, " must be None where ", names.offsets,
                   " is given; got a tensor");
    check_dim(op, names.points, points, 2, "(P, D)");
    check_index(op, names.offsets, *offsets, names.points, points);
    FUSEDOPS_CHECK(offsets->dim() == 1 && offsets->size(0) > 0, op, ": ", names.offsets,
                   " must have shape (B + 1,); got ", shape_string(*offsets));
    view.count = offsets->size(0) - 1;
    view.capacity = points.size(0);
    view.dim = points.size(1);
  } else {
    check_dim(op, names.points, points, 3, "(B, N, D)");
    view.count = points.size(0);
    view.capacity = points.size(1);
    view.dim = points.size(2);
    if (lengths) check_index_vector(op, names.lengths, *lengths, view.count, names.points, points);
  }
  CloudTensors result{dense(points), dense(lengths), dense(offsets), dtype, view};
  result.view.points = result.points.const_data_ptr();
  result.view.lengths = index_data(result.lengths);
  result.view.offsets = index_data(result.offsets);
  return result;
}

// Both batches of clouds share device, dtype, form, B and D.
inline void check_cloud_pair(const char* op, const CloudTensors& queries, const char* queries_name,
                             const CloudTensors& points, const char* points_name) {
  check_like(op, queries_name, queries.points, points_name, points.points);
  FUSEDOPS_CHECK(queries.offsets.has_value() == points.offsets.has_value(), op, ": ", queries_name,
                 " must be ", points.offsets ? "packed" : "padded", " like ", points_name, "; got ",
                 queries.offsets ? "packed" : "padded");
  FUSEDOPS_CHECK(queries.view.count == points.view.count, op, ": ", queries_name, " must have ",
                 points.view.count, " cloud(s) like ", points_name, "; got ", queries.view.count);
  FUSEDOPS_CHECK(queries.view.dim == points.view.dim, op, ": ", queries_name,
                 " must have D = ", points.view.dim, " like ", points_name,
                 "; got D = ", queries.view.dim);
}

}  // namespace fusedops
