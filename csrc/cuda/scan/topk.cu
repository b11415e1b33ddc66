// topk on CUDA.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/checks/scan_check.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/element_types.cuh"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/scan/topk_short.cuh"

namespace fusedops::cuda {
namespace {

std::tuple<Tensor, Tensor> topk(const Tensor& x,  // (..., N)
                                int64_t k, bool largest) {
  // Guard
  const LaunchScope scope("topk", x);

  // Checks
  const TopkShape shape = check_topk(x, k);

  // Allocate
  const auto sizes = topk_sizes(x, k);
  const Tensor values = new_dense(x, sizes);
  const Tensor indices = new_dense(x, sizes, ScalarType::Long);

  // Empty early return
  if (values.numel() == 0) return {values, indices};

  // Config
  const bool apart = x.dim() == 2 && x.stride(1) == 1;  // rows with any stride
  const Tensor input = apart ? x : dense(x);
  const int splits = topk_splits(shape.rows, shape.n, scope.facts().sm_count);
  const int64_t words = splits > 1 ? shape.rows * splits * k * 2 : 0;
  const Tensor candidates = new_dense(x, {words}, ScalarType::Long);

  // Launch
  dispatch(NumberElements{}, shape.element, [&]<Element E>(Tag<E>) {
    using T = ElementType<E>;
    const Topk<T> p{.rows = shape.rows,
                    .n = shape.n,
                    .k = static_cast<int>(k),
                    .splits = splits,
                    .x = static_cast<const T*>(input.const_data_ptr()),
                    .x_stride = apart ? x.stride(0) : shape.n,
                    .values = static_cast<T*>(values.mutable_data_ptr()),
                    .indices = static_cast<int64_t*>(indices.mutable_data_ptr()),
                    .candidates = static_cast<WideKey*>(candidates.mutable_data_ptr())};
    if (shape.n <= kShortTopk) {
      launch_topk_short(p, largest, scope.context().overlap, scope.stream());
    } else {
      launch_topk(p, largest, scope.stream());
    }
  });

  // Launch check
  check_launch("topk");
  return {values, indices};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) { m.impl("topk", FUSEDOPS_BOX(&topk)); }

}  // namespace fusedops::cuda
