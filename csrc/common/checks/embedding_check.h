// The contract of embedding_backward, checked once for CPU and CUDA; the fake repeats the texts.
#pragma once

#include <limits>

#include "csrc/common/checks/tensor_check.h"

namespace fusedops {

struct EmbeddingShape {
  DType dtype;
  int64_t entries, rows, d;  // M, V, D
};

// indices has the shape of grad but for the last dimension.
inline bool leads(const Tensor& indices, const Tensor& grad) {
  bool same = indices.dim() == grad.dim() - 1;
  for (int64_t i = 0; same && i < indices.dim(); ++i) same = indices.size(i) == grad.size(i);
  return same;
}

inline EmbeddingShape check_embedding_backward(const char* op, const Tensor& grad,  // (..., D)
                                               const Tensor& indices,               // (...)
                                               int64_t num_rows, int64_t padding_idx) {
  constexpr int64_t kMaxEntries = std::numeric_limits<int32_t>::max();
  constexpr int64_t kMaxRows = std::numeric_limits<uint32_t>::max() - int64_t{1};
  const DType dtype = check_floating(op, "grad", grad);
  check_min_dim(op, "grad", grad, 1);
  FUSEDOPS_CHECK(same_device(indices, grad), op, ": indices must be on ", device_string(grad),
                 " like grad; got ", device_string(indices));
  const ScalarType type = indices.scalar_type();
  FUSEDOPS_CHECK(type == ScalarType::Int || type == ScalarType::Long, op,
                 ": indices must have dtype int32 or int64; got ", dtype_name(type));
  FUSEDOPS_CHECK(leads(indices, grad), op, ": indices must have the shape of grad ",
                 shape_string(grad), " without the last dimension; got ", shape_string(indices));
  FUSEDOPS_CHECK(indices.numel() <= kMaxEntries, op, ": indices must have at most ", kMaxEntries,
                 " entries; got ", indices.numel());
  FUSEDOPS_CHECK(num_rows >= 0 && num_rows <= kMaxRows, op, ": num_rows must be from 0 to ",
                 kMaxRows, "; got ", num_rows);
  FUSEDOPS_CHECK(padding_idx >= -1 && padding_idx < num_rows, op,
                 ": padding_idx must be -1 or a row of ", num_rows, "; got ", padding_idx);
  return {dtype, indices.numel(), num_rows, grad.size(grad.dim() - 1)};
}

}  // namespace fusedops
