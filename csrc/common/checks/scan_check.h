// What a scan is, and how its tensor lies in memory. The CPU and the CUDA side share it.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "csrc/common/checks/element_check.h"

namespace fusedops {

enum class ScanKind : int8_t { kSum, kProd, kMax, kMin };

// x as (outer, n, inner), scanned over n; element (o, i, j) lies at
// o * outer_stride + i * dim_stride + j.
struct ScanShape {
  int64_t outer = 1, n = 1, inner = 1;
  int64_t outer_stride = 1, dim_stride = 1;
};

inline constexpr int64_t kScanStridedRow = 512;  // shorter rows are packed, so must be contiguous

// The strides, or false where the outer dimensions do not merge or the inner ones have gaps.
inline bool merge_strides(const Tensor& x, int64_t dim, ScanShape& shape) {
  int64_t expected = 1;
  for (int64_t i = x.dim() - 1; i > dim; --i) {
    if (x.size(i) != 1 && x.stride(i) != expected) return false;
    expected *= x.size(i);
  }
  shape.dim_stride = x.size(dim) == 1 ? shape.inner : x.stride(dim);
  if (shape.inner == 1 && shape.dim_stride != 1) return false;
  int64_t next = -1;  // the stride that the next outer dimension must have
  shape.outer_stride = shape.n * shape.inner;
  for (int64_t i = dim - 1; i >= 0; --i) {
    if (x.size(i) == 1) continue;
    if (next < 0) shape.outer_stride = x.stride(i);
    if (next >= 0 && x.stride(i) != next) return false;
    next = x.stride(i) * x.size(i);
  }
  return shape.inner > 1 || shape.n >= kScanStridedRow || shape.outer_stride == shape.n;
}

// Sizes of x around dim, and the tensor to read: x itself where its strides allow, else a copy.
inline std::pair<ScanShape, Tensor> scan_shape(const char* op, const Tensor& x, int64_t dim) {
  dim = check_dimension(op, dim, x.dim());
  ScanShape shape;
  if (x.dim() == 0) return {shape, x};
  for (int64_t i = 0; i < dim; ++i) shape.outer *= x.size(i);
  shape.n = x.size(dim);
  for (int64_t i = dim + 1; i < x.dim(); ++i) shape.inner *= x.size(i);
  if (merge_strides(x, dim, shape)) return {shape, x};
  shape.outer_stride = shape.n * shape.inner;
  shape.dim_stride = shape.inner;
  return {shape, dense(x)};
}

// Sums and products of integers are int64, as in torch.
inline ScalarType scan_dtype(ScanKind kind, const Tensor& x, Element element) {
  const bool extreme = kind == ScanKind::kMax || kind == ScanKind::kMin;
  return extreme || is_floating(element) ? x.scalar_type() : ScalarType::Long;
}

// ---- bincount and histogram ----

inline constexpr int64_t kMaxBins = int64_t{1} << 31;

inline void check_bins(const char* op, int64_t bins) {
  FUSEDOPS_CHECK(bins >= 1 && bins < kMaxBins, op, ": bins must be from 1 to 2147483647; got ",
                 bins);
}

inline void check_range(const char* op, double low, double high) {
  FUSEDOPS_CHECK(std::isfinite(low) && std::isfinite(high) && low < high, op,
                 ": low must be less than high, both finite; got ", low, " and ", high);
}

// ---- topk ----

struct TopkShape {
  Element element;
  int64_t rows, n;
};

inline TopkShape check_topk(const Tensor& x, int64_t k) {
  constexpr int64_t kMost = 128;
  const Element element = check_number("topk", "x", x);
  FUSEDOPS_CHECK(x.scalar_type() != ScalarType::Bool, "topk: x must not be bool; got bool");
  check_min_dim("topk", "x", x, 1);
  const int64_t n = x.size(x.dim() - 1);
  FUSEDOPS_CHECK(k >= 0 && k <= kMost && k <= n, "topk: k must be from 0 to ", std::min(kMost, n),
                 ", the smaller of 128 and the row length; got ", k);
  return {element, leading_numel(x), n};
}

inline std::vector<int64_t> topk_sizes(const Tensor& x, int64_t k) {
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() = k;
  return sizes;
}

}  // namespace fusedops
