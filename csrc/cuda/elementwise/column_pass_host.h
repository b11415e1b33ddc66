// Host side of the pass with column sums: operands as matrices, grid and workspace.
#pragma once

#include <optional>
#include <vector>

#include "csrc/common/host/launch.h"
#include "csrc/cuda/elementwise/column_pass.cuh"

namespace fusedops::cuda {

// (..., N) as rows of N contiguous elements, a fixed stride apart; a copy where it is not that.
struct RowMatrix {
  Tensor tensor;
  int64_t stride;

  explicit RowMatrix(const Tensor& source) : tensor(source), stride(row_stride(source)) {
    if (stride >= 0) return;
    tensor = dense(source);
    stride = source.size(source.dim() - 1);
  }
  const void* data() const { return tensor.const_data_ptr(); }

 private:
  // Negative: the tensor has no such form.
  static int64_t row_stride(const Tensor& source) {
    const auto sizes = source.sizes();
    const auto strides = source.strides();
    const int64_t last = static_cast<int64_t>(sizes.size()) - 1;
    if (sizes[last] != 1 && strides[last] != 1) return -1;
    int64_t rows = 1, stride = sizes[last];
    for (int64_t d = last - 1; d >= 0; --d) {
      if (sizes[d] == 1) continue;
      if (rows == 1) stride = strides[d];
      if (strides[d] != stride * rows) return -1;
      rows *= sizes[d];
    }
    return stride;
  }
};

inline void* pointer_or_null(const Tensor& tensor) {
  return tensor.numel() > 0 ? tensor.mutable_data_ptr() : nullptr;
}

template <class T, int kInputs, int kSums>
void set_grid(ColumnPass<kInputs, kSums>& pass, const LaunchScope& scope) {
  pass.period = pass.cols;
  if (fold_rows<T>(pass, scope.facts().sm_count)) return;
  const int vec = vectorizable<T>(pass) ? static_cast<int>(16 / sizeof(T)) : 1;
  pass.grid = column_grid(pass.rows, pass.cols, vec, scope.facts().sm_count);
}

// Workspace of one column sum; no element where the sum is not needed.
template <class T, int kInputs, int kSums>
Tensor partial_of(const ColumnPass<kInputs, kSums>& pass, const Tensor& like, bool needed) {
  const ScalarType type = sizeof(T) == 8 ? ScalarType::Double : ScalarType::Float;
  return new_dense(like, {needed ? pass.grid.row_blocks * pass.cols : 0}, type);
}

}  // namespace fusedops::cuda
