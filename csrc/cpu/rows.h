// Rows on the CPU: sums in double, so that the order of a row does not show.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "csrc/common/checks/row_check.h"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/aten.h"
#include "csrc/cpu/pointwise.h"

namespace fusedops::cpu {

// Rows that are worth a thread.
inline int64_t row_grain(int64_t n) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(n, 1));
}

template <typename Fn>
void for_rows(int64_t rows, int64_t n, Fn fn) {
  torch::stable::parallel_for(0, rows, row_grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) fn(row);
  });
}

// log(sum(exp(x))) = top + log(sum); top is finite unless a value is +inf or NaN.
template <typename C>
struct Normaliser {
  C top;
  double sum;
};

// Finds the normaliser of n values that lie `stride` apart.
template <typename C, typename T>
Normaliser<C> normaliser(const T* x, int64_t n, int64_t stride) {
  C top = -std::numeric_limits<C>::infinity();
  for (int64_t i = 0; i < n; ++i) top = std::max(top, static_cast<C>(x[i * stride]));
  if (top == -std::numeric_limits<C>::infinity()) top = 0;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<C>(x[i * stride]) - top);
  return {top, sum};
}

// Throws torch's own IndexError where a target is neither a class nor ignored.
inline void check_targets(const Tensor& targets,  // (rows,), contiguous
                          int64_t classes, int64_t ignore_index) {
  const auto* const target = static_cast<const int64_t*>(targets.const_data_ptr());
  for (int64_t row = 0; row < targets.size(0); ++row) {
    if (target[row] == ignore_index || (target[row] >= 0 && target[row] < classes)) continue;
    Tensor all = targets;
    call("aten::nll_loss", "", torch::stable::empty({1, classes}, ScalarType::Float),
         torch::stable::narrow(all, 0, row, 1), std::optional<Tensor>{}, int64_t{1}, ignore_index);
  }
}

// The cross entropy of a row that counts, and its log(sum(exp(x))).
template <typename C, typename T>
double row_loss(const T* x, int64_t n, int64_t target, double smoothing, C& lse) {
  const Normaliser<C> row = normaliser<C>(x, n, 1);
  const double top = row.top, log_sum = std::log(row.sum), exact = top + log_sum;
  lse = static_cast<C>(exact);
  double loss = (1 - smoothing) * (top - static_cast<C>(x[target]) + log_sum);
  if (smoothing != 0) {
    double values = 0;
    for (int64_t i = 0; i < n; ++i) values += static_cast<C>(x[i]);
    loss += smoothing * (exact - values / static_cast<double>(n));
  }
  return loss;
}

}  // namespace fusedops::cpu
