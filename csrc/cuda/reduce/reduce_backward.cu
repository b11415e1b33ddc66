// Gradients of reductions on CUDA: reduce_backward.
#include <torch/csrc/stable/library.h>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/checks/reduce_check.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/reduce/reduce_backward.cuh"

namespace fusedops::cuda {
namespace {

using Gradients = Choices<ReduceGradient::kAffine, ReduceGradient::kSign, ReduceGradient::kExp,
                          ReduceGradient::kEqual, ReduceGradient::kEqualAbs, ReduceGradient::kProd>;

// Neighbouring dimensions along which scale moves alike become one.
void collapse(const Tensor& x, const Tensor& scale, ReduceBackward& p) {
  const auto sizes = x.sizes(), own = scale.sizes(), strides = scale.strides();
  p.ndim = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1) continue;
    const int64_t stride = own[i] == 1 ? 0 : strides[i];
    if (p.ndim > 0 && p.stride[p.ndim - 1] == stride * sizes[i]) {
      p.size[p.ndim - 1] *= sizes[i];
      p.stride[p.ndim - 1] = stride;
      continue;
    }
    FUSEDOPS_CHECK(p.ndim < kMaxReduceBackwardDims,
                   "reduce_backward: x must not alternate kept and reduced dimensions more than ",
                   kMaxReduceBackwardDims, " times; got shape ", shape_string(x));
    p.size[p.ndim] = sizes[i];
    p.stride[p.ndim++] = stride;
  }
  if (p.ndim == 0) {
    p.size[0] = 1;
    p.stride[0] = 0;
    p.ndim = 1;
  }
}

template <class T, int kVec>
cudaError_t launch(const ReduceBackward& p, ReduceGradient gradient, const LaunchContext& context) {
  const int64_t blocks = ceil_div(p.count, int64_t{kReduceBackwardThreads} * kVec);
  return dispatch(Gradients{}, gradient, [&]<ReduceGradient G>(Tag<G>) {
    return launch_kernel(reduce_backward_kernel<T, kVec, G>, dim3(static_cast<unsigned>(blocks)),
                         dim3(kReduceBackwardThreads), 0, static_cast<cudaStream_t>(context.stream),
                         context.overlap, p);
  });
}

Tensor reduce_backward(const Tensor& x,                     // any shape
                       const Tensor& scale,                 // that shape, or 1 in a dimension
                       const std::optional<Tensor>& shift,  // like scale
                       int64_t gradient) {
  // Checks
  const ReduceGradient code = check_reduce_backward(x, scale, shift, gradient);

  // Guard
  const LaunchScope scope("reduce_backward", x);

  // Contract
  const Tensor input = dense(x);
  const Tensor factor = dense(scale);
  const std::optional<Tensor> offset = dense(shift);

  // Allocate
  const Tensor dx = new_dense(input, x.sizes());

  // Empty early return
  if (x.numel() == 0) return dx;

  // Config
  ReduceBackward p{.x = input.const_data_ptr(),
                   .dx = dx.mutable_data_ptr(),
                   .scale = factor.const_data_ptr(),
                   .shift = offset ? offset->const_data_ptr() : nullptr,
                   .count = x.numel()};
  collapse(input, factor, p);
  const int64_t vec = 16 / dtype_bytes(check_floating("reduce_backward", "x", x));
  const bool vectors = p.size[p.ndim - 1] % vec == 0 && reinterpret_cast<uintptr_t>(p.x) % 16 == 0;

  // Launch
  const cudaError_t status =
      dispatch_dtype(check_floating("reduce_backward", "x", x), [&]<DType D>(Tag<D>) {
        using T = DeviceType<D>;
        return vectors ? launch<T, 16 / sizeof(T)>(p, code, scope.context())
                       : launch<T, 1>(p, code, scope.context());
      });

  // Launch check
  FUSEDOPS_CHECK(status == cudaSuccess,
                 "reduce_backward: CUDA error: ", cudaGetErrorString(status));
  check_launch("reduce_backward");
  return dx;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("reduce_backward", FUSEDOPS_BOX(&reduce_backward));
}

}  // namespace fusedops::cuda
