// stencil on CUDA.
#include <torch/csrc/stable/library.h>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cuda/stencil/stencil_host.h"
#include "csrc/cuda/stencil/stencil_small.cuh"

namespace fusedops::cuda {

void launch_stencil_forward(const LaunchScope& scope, DType dtype, const StencilShape& shape,
                            const Tensor& x, const Tensor& weight, const Tensor& y, double scale,
                            bool adjoint) {
  const bool overlap = scope.facts().code_version >= 90;
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    StencilProblem<T> p{};
    p.shape = shape;
    p.x = static_cast<const T*>(x.const_data_ptr());
    p.weight = static_cast<const T*>(weight.const_data_ptr());
    p.y = static_cast<T*>(y.mutable_data_ptr());
    p.scale = scale;
    p.aligned = rows_allow_vectors(shape, x, y);
    p.adjoint = adjoint;
    // NOTE: a circle's gradient is a circle; other paddings add what lies beyond to the border.
    if (adjoint && shape.padding != Padding::kCircular) {
      p.fold = shape.padding;
      p.shape.padding = Padding::kZeros;
    }
    const int64_t fill = 2 * scope.facts().sm_count;
    p.grid = stencil_grid(p.shape, shape.planes, fill, sizeof(Compute<T>), 0);
    dispatch(StencilInstances{}, stencil_instance(shape), [&]<int kTaps>(Tag<kTaps>) {
      launch_any_stencil<T, kTaps / 16, kTaps % 16>(p, scope.facts().sm_count, scope.stream(),
                                                    overlap);
    });
  });
}

namespace {

Tensor stencil(const Tensor& x,       // (..., [D,] [H,] W)
               const Tensor& weight,  // ([C,] [kd,] [kh,] kw)
               double scale, int64_t dims, int64_t padding) {
  // Guard
  const LaunchScope scope("stencil", x);

  // Checks
  const StencilShape shape = check_stencil("stencil", "x", x, weight, dims, padding);

  // Contract
  const Tensor input = dense(x), taps = dense(weight);

  // Allocate
  const Tensor out = new_dense(x, x.sizes());

  // Empty early return
  if (out.numel() == 0) return out;

  // Launch
  launch_stencil_forward(scope, check_floating("stencil", "x", x), shape, input, taps, out, scale,
                         /*adjoint=*/false);

  // Launch check
  check_launch("stencil");
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) { m.impl("stencil", FUSEDOPS_BOX(&stencil)); }

}  // namespace fusedops::cuda
