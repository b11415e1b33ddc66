// The gradient of an embedding on CUDA.
#include <torch/csrc/stable/library.h>

#include "csrc/common/checks/embedding_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/embedding.h"
#include "csrc/cuda/inverted_index/inverted_index.h"
#include "csrc/cuda/rows/embedding/embedding_backward.cuh"

namespace fusedops::cuda {
namespace {

constexpr int kWideBytes = 16;

template <DType D>
EmbeddingGradient<DeviceType<D>> gradient_of(const EmbeddingShape& shape, const Tensor& grad,
                                             const Tensor& indices, const InvertedIndex& inverted,
                                             const Tensor& chunk_sums, const Tensor& out) {
  using T = DeviceType<D>;
  return {.grad = static_cast<const T*>(grad.const_data_ptr()),
          .indices = {indices.const_data_ptr(), indices.scalar_type() == ScalarType::Long},
          .order = inverted.entries,
          .ranges = inverted.ranges,
          .chunk_sums = static_cast<Compute<T>*>(chunk_sums.mutable_data_ptr()),
          .out = static_cast<T*>(out.mutable_data_ptr()),
          .entries = shape.entries,
          .rows = shape.rows,
          .d = shape.d,
          .chunk = static_cast<uint32_t>(embedding_chunk(shape.entries))};
}

Tensor embedding_backward(const Tensor& grad,     // (..., D)
                          const Tensor& indices,  // (...)
                          int64_t num_rows, int64_t padding_idx) {
  constexpr const char* kOp = "embedding_backward";
  // Guard
  const LaunchScope scope(kOp, grad);

  // Contract, checks
  const EmbeddingShape shape = check_embedding_backward(kOp, grad, indices, num_rows, padding_idx);

  // Allocate
  const Tensor out = new_dense(grad, {shape.rows, shape.d});

  // Empty early return
  if (out.numel() == 0) return out;
  if (shape.entries == 0) {
    cudaMemsetAsync(out.mutable_data_ptr(), 0,
                    static_cast<size_t>(out.numel()) * out.element_size(), scope.stream());
    check_launch(kOp);
    return out;
  }

  // Config
  const Tensor rows = dense(grad), idx = dense(indices);
  const InvertedIndex inverted = invert_index(kOp, scope, idx, 1, shape.rows);
  const int64_t slots = shape.entries / embedding_chunk(shape.entries);
  const Tensor chunk_sums = new_dense(grad, {slots * shape.d}, wide_dtype(grad));

  // Launch
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    constexpr int kWide = kWideBytes / sizeof(T);
    auto a = gradient_of<D>(shape, rows, idx, inverted, chunk_sums, out);
    a.padding = padding_idx;
    const bool wide = shape.d % kWide == 0 && reinterpret_cast<uintptr_t>(a.grad) % kWideBytes == 0;
    dispatch_bool(wide, [&]<bool kIsWide>(Tag<kIsWide>) {
      launch_embedding_backward<EmbeddingAccess<T, kIsWide ? kWide : 1>>(a, scope.stream());
    });
  });

  // Launch check
  check_launch(kOp);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("embedding_backward", FUSEDOPS_BOX(&embedding_backward));
}

}  // namespace fusedops::cuda
