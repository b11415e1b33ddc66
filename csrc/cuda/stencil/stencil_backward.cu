// stencil_backward on CUDA.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cuda/stencil/stencil_gradient.cuh"
#include "csrc/cuda/stencil/stencil_host.h"

namespace fusedops::cuda {
namespace {

void launch_weight_gradient(const LaunchScope& scope, DType dtype, const StencilShape& shape,
                            const Tensor& dy, const Tensor& x, const Tensor& dweight,
                            double scale) {
  const bool overlap = scope.facts().code_version >= 90;
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    using C = Compute<T>;
    StencilWeightProblem<T> p{};
    p.shape = shape;
    // NOTE: few large blocks leave few sums.
    p.grid = stencil_grid(shape, shape.planes / shape.groups, /*fill=*/0, sizeof(C),
                          kStencilSumBytes<C>);
    p.slices = stencil_slices(shape, p.grid, scope.facts().sm_count);
    const int64_t columns = shape.groups * shape.taps();
    const ScalarType wide = sizeof(C) == 8 ? ScalarType::Double : ScalarType::Float;
    const int64_t elements = p.slices > 1 ? p.slices * columns : 0;
    const Tensor partial = new_dense(dy, elements, wide);
    p.dy = static_cast<const T*>(dy.const_data_ptr());
    p.x = static_cast<const T*>(x.const_data_ptr());
    p.partial = static_cast<C*>(partial.mutable_data_ptr());
    p.dweight = static_cast<T*>(dweight.mutable_data_ptr());
    p.scale = scale;
    p.aligned = rows_allow_vectors(shape, dy, x);
    dispatch(StencilInstances{}, stencil_instance(shape), [&]<int kTaps>(Tag<kTaps>) {
      launch_stencil_weight<T, kTaps / 16, kTaps % 16>(p, scope.stream(), overlap);
    });
    if (p.slices == 1) return;
    launch_kernel(column_sum_kernel<C, T>, dim3(ceil_div(columns, kColumnSumX)),
                  dim3(kColumnSumX, kColumnSumY), 0, scope.stream(), overlap, p.partial, p.dweight,
                  p.slices, columns);
  });
}

std::tuple<Tensor, Tensor> stencil_backward(const Tensor& dy,      // (..., [D,] [H,] W)
                                            const Tensor& x,       // (..., [D,] [H,] W)
                                            const Tensor& weight,  // ([C,] [kd,] [kh,] kw)
                                            double scale, int64_t dims, int64_t padding,
                                            bool need_dx, bool need_dweight) {
  constexpr const char* kOp = "stencil_backward";
  // Guard
  const LaunchScope scope(kOp, dy);

  // Checks
  const StencilShape shape = check_stencil_backward(kOp, dy, x, weight, dims, padding);
  const DType dtype = check_floating(kOp, "dy", dy);

  // Contract
  const Tensor grad = dense(dy);

  // Allocate
  const auto nothing = [&] { return new_dense(dy, {0}); };
  const Tensor dx = need_dx ? new_dense(dy, dy.sizes()) : nothing();
  Tensor dweight = need_dweight ? new_dense(dy, weight.sizes()) : nothing();

  // Empty early return
  if (dy.numel() == 0) {
    torch::stable::zero_(dweight);
    return {dx, dweight};
  }

  // Launch
  if (need_dx) {
    launch_stencil_forward(scope, dtype, shape, grad, dense(weight), dx, scale,
                           /*adjoint=*/true);
  }
  if (need_dweight) {
    launch_weight_gradient(scope, dtype, shape, grad, dense(x), dweight, scale);
  }

  // Launch check
  check_launch(kOp);
  return {dx, dweight};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("stencil_backward", FUSEDOPS_BOX(&stencil_backward));
}

}  // namespace fusedops::cuda
