// topk on the CPU: a partial sort of every row.
#include <algorithm>
#include <numeric>
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/checks/scan_check.h"
#include "csrc/common/host/aten.h"
#include "csrc/cpu/element_types.h"

namespace fusedops::cpu {
namespace {

// Whether element a of a row comes before element b: NaN above every number, equal ones by index.
template <class T>
bool comes_first(const T* x, int64_t a, int64_t b, bool largest) {
  using Value =
      std::conditional_t<std::is_integral_v<T>, T, std::conditional_t<sizeof(T) == 2, float, T>>;
  const auto first = static_cast<Value>(x[a]), second = static_cast<Value>(x[b]);
  const bool nan_a = first != first, nan_b = second != second;
  const bool above = nan_a ? !nan_b : first > second;
  const bool below = nan_b ? !nan_a : first < second;
  return (largest ? above : below) || (!above && !below && a < b);
}

std::tuple<Tensor, Tensor> topk(const Tensor& x,  // (..., N)
                                int64_t k, bool largest) {
  // Checks
  const TopkShape shape = check_topk(x, k);
  const NoGradGuard no_grad;

  // Allocate
  const Tensor input = dense(x);
  const auto sizes = topk_sizes(x, k);
  const Tensor values = torch::stable::empty(sizes, x.scalar_type());
  const Tensor indices = torch::stable::empty(sizes, ScalarType::Long);

  // Launch
  dispatch(NumberElements{}, shape.element, [&]<Element E>(Tag<E>) {
    using T = HostElement<E>;
    torch::stable::parallel_for(0, shape.rows, 1, [&](int64_t begin, int64_t end) {
      std::vector<int64_t> order(shape.n);
      for (int64_t row = begin; row < end; ++row) {
        const T* data = typed<T>(input) + row * shape.n;
        std::iota(order.begin(), order.end(), 0);
        std::partial_sort(order.begin(), order.begin() + k, order.end(),
                          [&](auto a, auto b) { return comes_first(data, a, b, largest); });
        for (int64_t i = 0; i < k; ++i) {
          mutable_typed<T>(values)[row * k + i] = data[order[i]];
          mutable_typed<int64_t>(indices)[row * k + i] = order[i];
        }
      }
    });
  });
  return {values, indices};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) { m.impl("topk", FUSEDOPS_BOX(&topk)); }

}  // namespace fusedops::cpu
