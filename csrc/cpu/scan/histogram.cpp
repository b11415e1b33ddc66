// bincount and histogram on the CPU.
#include <algorithm>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/checks/scan_check.h"
#include "csrc/common/histogram_range.h"
#include "csrc/common/host/aten.h"
#include "csrc/cpu/element_types.h"

namespace fusedops::cpu {
namespace {

// Counts bin_of(x[i]) where it is not negative.
template <class T, class Fn>
Tensor count(const Tensor& x, int64_t bins, Fn bin_of) {
  const NoGradGuard no_grad;
  const Tensor input = dense(x);
  const Tensor out = torch::stable::empty({bins}, ScalarType::Long);
  auto* const result = mutable_typed<int64_t>(out);
  std::fill_n(result, bins, 0);
  const T* data = typed<T>(input);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const int64_t bin = bin_of(data[i]);
    if (bin >= 0) ++result[bin];
  }
  return out;
}

Tensor bincount(const Tensor& x,  // any shape, integer
                int64_t bins) {
  const Element element = check_integer("bincount", "x", x);
  check_bins("bincount", bins);
  return dispatch(IntegerElements{}, element, [&]<Element E>(Tag<E>) {
    return count<IntegerType<E>>(x, bins, [bins](auto value) {
      return static_cast<int64_t>(value) < bins ? static_cast<int64_t>(value) : -1;
    });
  });
}

Tensor histogram(const Tensor& x,  // any shape, floating
                 int64_t bins, double low, double high) {
  const DType dtype = check_floating("histogram", "x", x);
  check_bins("histogram", bins);
  check_range("histogram", low, high);
  return dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using C = Compute<D>;
    const auto from = static_cast<C>(low), to = static_cast<C>(high);
    const bool held = holds_range(from, to, bins);
    return count<Storage<D>>(x, bins, [=](auto value) -> int64_t {
      const auto v = static_cast<C>(value);
      if (!(v >= from && v <= to)) return -1;
      if (!held) return wide_bin(v, low, high, bins);
      return std::min(static_cast<int64_t>((v - from) * static_cast<C>(bins) / (to - from)),
                      bins - 1);
    });
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("bincount", FUSEDOPS_BOX(&bincount));
  m.impl("histogram", FUSEDOPS_BOX(&histogram));
}

}  // namespace fusedops::cpu
