// a * x + y on a GPU.
#include <torch/csrc/stable/ops.h>

#include "axpy.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/launch.h"

namespace axpy {
namespace {

using namespace fusedops;

template <class T>
__global__ void __launch_bounds__(256)
    axpy_kernel(const T* x, const T* y, T* out, int64_t count, Compute<T> a) {
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i < count) out[i] = from_compute<T>(a * to_compute(x[i]) + to_compute(y[i]));
}

Tensor on_cuda(const Tensor& x, const Tensor& y, double a) {
  const LaunchScope scope("axpy", x);
  const DType dtype = check_axpy(x, y);
  const Tensor left = torch::stable::contiguous(x), right = torch::stable::contiguous(y);
  const Tensor out = torch::stable::empty_like(left);
  const int64_t count = left.numel();
  if (count == 0) return out;
  const auto blocks = static_cast<unsigned>(ceil_div(count, int64_t{256}));
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    axpy_kernel<T><<<blocks, 256, 0, scope.stream()>>>(
        static_cast<const T*>(left.const_data_ptr()), static_cast<const T*>(right.const_data_ptr()),
        static_cast<T*>(out.mutable_data_ptr()), count, static_cast<Compute<T>>(a));
  });
  check_launch("axpy");
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(axpy, CUDA, m) { m.impl("axpy", FUSEDOPS_BOX(&on_cuda)); }

}  // namespace axpy
