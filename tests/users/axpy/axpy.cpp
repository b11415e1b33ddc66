// a * x + y: the schema, and the CPU.
#include "axpy.h"

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/aten.h"
#include "csrc/cpu/pointwise.h"

namespace axpy {
namespace {

using namespace fusedops;
using namespace fusedops::cpu;

Tensor on_cpu(const Tensor& x, const Tensor& y, double a) {
  const DType dtype = check_axpy(x, y);
  const NoGradGuard no_grad;
  const Tensor left = dense(x), right = dense(y);
  const Tensor out = torch::stable::empty(x.sizes(), x.scalar_type());
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using C = fusedops::cpu::Compute<D>;
    map<C>(data<D>(left), data<D>(right), mutable_data<D>(out), x.numel(),
           [a = static_cast<C>(a)](C p, C q) { return a * p + q; });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(axpy, m) { m.def("axpy(Tensor x, Tensor y, float a) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(axpy, CPU, m) { m.impl("axpy", FUSEDOPS_BOX(&on_cpu)); }

}  // namespace axpy
