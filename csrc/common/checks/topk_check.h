// Checks of topk.
#pragma once

#include <algorithm>
#include <vector>

#include "csrc/common/checks/element_check.h"

namespace fusedops {

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
