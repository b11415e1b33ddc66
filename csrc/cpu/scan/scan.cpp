// cumsum, cumprod, cummax and cummin on the CPU: one pass per line, sums and products in double or
// modulo 2^64.
#include <algorithm>
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/checks/scan_check.h"
#include "csrc/common/host/aten.h"
#include "csrc/cpu/element_types.h"
#include "csrc/cpu/pointwise.h"

namespace fusedops::cpu {
namespace {

// fn(offset in x, offset in the result) for the first element of every line.
template <class Fn>
void each_line(const ScanShape& s, Fn fn) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, s.n));
  torch::stable::parallel_for(0, s.outer * s.inner, grain, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const int64_t o = line / s.inner, j = line % s.inner;
      fn(o * s.outer_stride + j, o * s.n * s.inner + j);
    }
  });
}

template <class T, class Out>
void accumulate(const ScanShape& s, const T* x, Out* y, bool product, bool exclusive,
                bool reverse) {
  using Acc = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
  each_line(s, [&](int64_t from, int64_t to) {
    Acc total = product ? Acc(1) : Acc(0);
    for (int64_t k = 0; k < s.n; ++k) {
      const int64_t i = reverse ? s.n - 1 - k : k;
      const Acc before = total;
      const auto value = static_cast<Acc>(x[from + i * s.dim_stride]);
      total = product ? total * value : total + value;
      y[to + i * s.inner] = static_cast<Out>(exclusive ? before : total);
    }
  });
}

template <class T>
void extreme(const ScanShape& s, const T* x, T* y, int64_t* index, bool largest) {
  using Value =
      std::conditional_t<std::is_integral_v<T>, T, std::conditional_t<sizeof(T) == 2, float, T>>;
  each_line(s, [&](int64_t from, int64_t to) {
    int64_t at = 0;
    for (int64_t i = 0; i < s.n; ++i) {
      const auto best = static_cast<Value>(x[from + at * s.dim_stride]);
      const auto value = static_cast<Value>(x[from + i * s.dim_stride]);
      const bool later = largest ? value >= best : value <= best;
      if (value != value || (best == best && later)) at = i;
      y[to + i * s.inner] = x[from + at * s.dim_stride];
      index[to + i * s.inner] = at;
    }
  });
}

Tensor run_accumulate(const char* op, ScanKind kind, const Tensor& x, int64_t dim, bool exclusive,
                      bool reverse) {
  // Checks
  const Element element = check_number(op, "x", x);
  const NoGradGuard no_grad;
  const auto [shape, input] = scan_shape(op, x, dim);

  // Allocate
  const Tensor y = torch::stable::empty(x.sizes(), scan_dtype(kind, x, element));

  // Launch
  dispatch(NumberElements{}, element, [&]<Element E>(Tag<E>) {
    using T = HostElement<E>;
    using Out = std::conditional_t<is_floating(E), T, int64_t>;
    accumulate(shape, typed<T>(input), mutable_typed<Out>(y), kind == ScanKind::kProd, exclusive,
               reverse);
  });
  return y;
}

std::tuple<Tensor, Tensor> run_extreme(const char* op, ScanKind kind, const Tensor& x,
                                       int64_t dim) {
  // Checks
  const Element element = check_number(op, "x", x);
  const NoGradGuard no_grad;
  const auto [shape, input] = scan_shape(op, x, dim);

  // Allocate
  const Tensor y = torch::stable::empty(x.sizes(), x.scalar_type());
  const Tensor index = torch::stable::empty(x.sizes(), ScalarType::Long);

  // Launch
  dispatch(NumberElements{}, element, [&]<Element E>(Tag<E>) {
    using T = HostElement<E>;
    extreme(shape, typed<T>(input), mutable_typed<T>(y), mutable_typed<int64_t>(index),
            kind == ScanKind::kMax);
  });
  return {y, index};
}

Tensor cumsum(const Tensor& x, int64_t dim, bool exclusive, bool reverse) {
  return run_accumulate("cumsum", ScanKind::kSum, x, dim, exclusive, reverse);
}
Tensor cumprod(const Tensor& x, int64_t dim, bool exclusive, bool reverse) {
  return run_accumulate("cumprod", ScanKind::kProd, x, dim, exclusive, reverse);
}
std::tuple<Tensor, Tensor> cummax(const Tensor& x, int64_t dim) {
  return run_extreme("cummax", ScanKind::kMax, x, dim);
}
std::tuple<Tensor, Tensor> cummin(const Tensor& x, int64_t dim) {
  return run_extreme("cummin", ScanKind::kMin, x, dim);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("cumsum", FUSEDOPS_BOX(&cumsum));
  m.impl("cumprod", FUSEDOPS_BOX(&cumprod));
  m.impl("cummax", FUSEDOPS_BOX(&cummax));
  m.impl("cummin", FUSEDOPS_BOX(&cummin));
}

}  // namespace fusedops::cpu
