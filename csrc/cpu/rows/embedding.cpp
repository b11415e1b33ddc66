// The gradient of an embedding on the CPU.
#include "csrc/common/embedding.h"

#include <vector>

#include "csrc/common/checks/embedding_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/cpu/rows.h"

namespace fusedops::cpu {
namespace {

template <class Fn>
decltype(auto) with_indices(const Tensor& indices, Fn&& fn) {
  if (indices.scalar_type() == ScalarType::Int) {
    return fn(static_cast<const int32_t*>(indices.const_data_ptr()));
  }
  return fn(static_cast<const int64_t*>(indices.const_data_ptr()));
}

// Throws torch's own IndexError where an index is no row.
template <class Index>
void check_indices(const Index* indices, const EmbeddingShape& shape) {
  for (int64_t m = 0; m < shape.entries; ++m) {
    if (indices[m] >= 0 && indices[m] < shape.rows) continue;
    Tensor bad = torch::stable::empty({1}, ScalarType::Long);
    *static_cast<int64_t*>(bad.mutable_data_ptr()) = indices[m];
    call("aten::index_select", "", torch::stable::empty({shape.rows}, ScalarType::Byte), int64_t{0},
         bad);
  }
}

// The entries of each row, ascending.
struct EntriesByRow {
  std::vector<int64_t> starts;  // [rows + 1] in order
  std::vector<int64_t> order;   // [entries]

  template <class Index>
  EntriesByRow(const Index* indices, const EmbeddingShape& shape)
      : starts(shape.rows + 1), order(shape.entries) {
    for (int64_t m = 0; m < shape.entries; ++m) ++starts[indices[m] + 1];
    for (int64_t row = 0; row < shape.rows; ++row) starts[row + 1] += starts[row];
    std::vector<int64_t> next(starts.begin(), starts.end() - 1);
    for (int64_t m = 0; m < shape.entries; ++m) order[next[indices[m]]++] = m;
  }
};

template <DType D>
struct EmbeddingGradient {
  using C = Compute<D>;
  const EntriesByRow& entries;
  const Storage<D>* grad;
  int64_t d, chunk;

  void add(int64_t begin, int64_t end, std::vector<C>& sum) const {
    for (int64_t i = begin; i < end; ++i) {
      const Storage<D>* row = grad + entries.order[i] * d;
      for (int64_t c = 0; c < d; ++c) sum[c] += static_cast<C>(row[c]);
    }
  }

  // In the order of the CUDA kernel: full chunks, then what is left.
  void row(int64_t v, Storage<D>* out) const {
    std::vector<C> sum(d);
    int64_t at = entries.starts[v];
    const int64_t end = entries.starts[v + 1];
    for (; end - at >= chunk; at += chunk) {
      std::vector<C> part(d);
      add(at, at + chunk, part);
      for (int64_t c = 0; c < d; ++c) sum[c] += part[c];
    }
    add(at, end, sum);
    for (int64_t c = 0; c < d; ++c) out[c] = static_cast<Storage<D>>(sum[c]);
  }
};

Tensor embedding_backward(const Tensor& grad,     // (..., D)
                          const Tensor& indices,  // (...)
                          int64_t num_rows, int64_t padding_idx) {
  // Checks
  const NoGradGuard no_grad;
  const EmbeddingShape shape =
      check_embedding_backward("embedding_backward", grad, indices, num_rows, padding_idx);
  const Tensor rows = dense(grad), idx = dense(indices);
  with_indices(idx, [&](const auto* data) { check_indices(data, shape); });

  // Allocate
  Tensor out = torch::stable::empty({shape.rows, shape.d}, grad.scalar_type());

  // Launch
  const EntriesByRow entries =
      with_indices(idx, [&](const auto* data) { return EntriesByRow(data, shape); });
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    const EmbeddingGradient<D> gradient{entries, data<D>(rows), shape.d,
                                        embedding_chunk(shape.entries)};
    Storage<D>* result = mutable_data<D>(out);
    for_rows(shape.rows, shape.d, [&](int64_t v) {
      Storage<D>* row = result + v * shape.d;
      if (v == padding_idx || entries.starts[v] == entries.starts[v + 1]) {
        std::fill_n(row, shape.d, Storage<D>(0));
      } else {
        gradient.row(v, row);
      }
    });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("embedding_backward", FUSEDOPS_BOX(&embedding_backward));
}

}  // namespace fusedops::cpu
