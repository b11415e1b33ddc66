// segment_reduce and its backward on the CPU.
#include <algorithm>
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/checks/segment_check.h"
#include "csrc/common/host/aten.h"
#include "csrc/cpu/element_types.h"
#include "csrc/cpu/pointwise.h"

namespace fusedops::cpu {
namespace {

// Segments of a CSR vector, rows clamped to those that exist.
struct Rows {
  const int64_t* offsets;
  int64_t rows;
  int64_t begin(int64_t s) const { return std::clamp<int64_t>(offsets[s], 0, rows); }
  int64_t end(int64_t s) const { return std::max(begin(s), begin(s + 1)); }
};

template <class Fn>
void each_result(const SegmentShape& shape, Fn fn) {
  const int64_t count = shape.segments * shape.columns;
  torch::stable::parallel_for(0, count, kGrain / 16, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) fn(i, i / shape.columns, i % shape.columns);
  });
}

template <class T>
void sums(const SegmentShape& shape, const T* x, Rows rows, T* y, bool mean) {
  each_result(shape, [&](int64_t i, int64_t s, int64_t c) {
    double total = 0;
    const int64_t begin = rows.begin(s), end = rows.end(s);
    for (int64_t r = begin; r < end; ++r) total += static_cast<double>(x[r * shape.columns + c]);
    if (mean && end > begin) total /= static_cast<double>(end - begin);
    y[i] = static_cast<T>(total);
  });
}

template <class T, class Compute>
void extremes(const SegmentShape& shape, const T* x, Rows rows, T* y, int64_t* index,
              bool largest) {
  each_result(shape, [&](int64_t i, int64_t s, int64_t c) {
    int64_t at = -1;
    Compute best = 0;
    for (int64_t r = rows.begin(s); r < rows.end(s); ++r) {
      const auto value = static_cast<Compute>(x[r * shape.columns + c]);
      const bool better = largest ? value > best : value < best;
      if (at < 0 || better || (value != value && best == best)) {
        at = r;
        best = value;
      }
    }
    y[i] = static_cast<T>(best);
    index[i] = at;
  });
}

std::tuple<Tensor, Tensor> segment_reduce(const Tensor& x,        // (E, ...)
                                          const Tensor& offsets,  // (S + 1,)
                                          int64_t kind) {
  // Checks
  const SegmentShape shape = check_segment_reduce(x, offsets, kind);
  const NoGradGuard no_grad;
  const bool indexed = kind >= 2;

  // Allocate
  const Tensor input = dense(x), ends = dense(offsets);
  const auto sizes = with_rows(shape.segments, x);
  const Tensor y = torch::stable::empty(sizes, x.scalar_type());
  const Tensor index =
      torch::stable::empty(indexed ? sizes : std::vector<int64_t>{0}, ScalarType::Long);

  // Launch
  const Rows rows{typed<int64_t>(ends), shape.rows};
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    using T = Storage<D>;
    if (indexed) {
      extremes<T, Compute<D>>(shape, typed<T>(input), rows, mutable_typed<T>(y),
                              mutable_typed<int64_t>(index), kind == 2);
    } else {
      sums<T>(shape, typed<T>(input), rows, mutable_typed<T>(y), kind == 1);
    }
  });
  return {y, index};
}

Tensor segment_reduce_backward(const Tensor& dy,                    // (S, ...)
                               const Tensor& offsets,               // (S + 1,)
                               const std::optional<Tensor>& index,  // (S, ...), or none
                               int64_t rows, bool mean) {
  // Checks
  const SegmentShape shape = check_segment_backward(dy, offsets, index, rows);
  const NoGradGuard no_grad;

  // Allocate
  const Tensor grad = dense(dy), ends = dense(offsets);
  const Tensor chosen = index ? dense(*index) : ends;
  const Tensor dx = torch::stable::empty(with_rows(rows, dy), dy.scalar_type());

  // Launch
  const Rows span{typed<int64_t>(ends), rows};
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    using T = Storage<D>;
    const T* from = typed<T>(grad);
    T* to = mutable_typed<T>(dx);
    std::fill_n(to, rows * shape.columns, T(0));
    each_result(shape, [&](int64_t i, int64_t s, int64_t c) {
      const int64_t begin = span.begin(s), end = span.end(s);
      if (index) {
        const int64_t row = typed<int64_t>(chosen)[i];
        if (row >= begin && row < end) to[row * shape.columns + c] = from[i];
        return;
      }
      auto share = static_cast<Compute<D>>(from[i]);
      if (mean && end > begin) share /= static_cast<Compute<D>>(end - begin);
      for (int64_t r = begin; r < end; ++r) to[r * shape.columns + c] = static_cast<T>(share);
    });
  });
  return dx;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("segment_reduce", FUSEDOPS_BOX(&segment_reduce));
  m.impl("segment_reduce_backward", FUSEDOPS_BOX(&segment_reduce_backward));
}

}  // namespace fusedops::cpu
