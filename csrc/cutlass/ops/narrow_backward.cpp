#include "csrc/cutlass/ops/narrow_backward.h"

#include "csrc/cutlass/kernels/narrow/sm90_narrow.h"
#include "csrc/cutlass/launch/gemm_launch.h"

namespace fusedops {
namespace narrow {
namespace {

RunFn g_kernels;  // NOTE: zero-initialised before any dynamic initialiser runs.

}  // namespace

RunFn find_kernels() { return g_kernels; }

bool register_kernels(RunFn run) {
  g_kernels = run;
  return true;
}

}  // namespace narrow

namespace {

using narrow::Backward;

void* out_pointer(const Tensor* tensor) { return tensor ? tensor->mutable_data_ptr() : nullptr; }

}  // namespace

bool run_narrow_backward(const char* op, const LinearShape& shape, const NarrowOperands& t,
                         const NarrowGradients& wanted, const LaunchScope& scope) {
  const narrow::RunFn run = narrow::find_kernels();
  const NarrowProblem problem{.dtype = shape.dtype,
                              .activation = shape.activation,
                              .m = shape.m,
                              .n = shape.n,
                              .k = shape.k,
                              .dx = wanted.dx != nullptr,
                              .dweight = wanted.dweight != nullptr,
                              .dbias = wanted.dbias != nullptr};
  if (run == nullptr || !narrow_takes(problem, t, device_model(scope))) return false;
  const Tensor* sums = wanted.dweight ? wanted.dweight : wanted.dbias;
  Backward p{.dtype = shape.dtype,
             .activation = shape.activation,
             .m = shape.m,
             .n = shape.n,
             .k = shape.k,
             .dy = t.dy.data,
             .saved = t.saved.data,
             .x = t.x.data,
             .weight = t.weight.data,
             .dy_ld = t.dy.row_stride,
             .saved_ld = t.saved.row_stride,
             .x_ld = t.x.row_stride,
             .weight_ld = t.weight.row_stride,
             .dx = out_pointer(wanted.dx),
             .dweight = out_pointer(wanted.dweight),
             .dbias = out_pointer(wanted.dbias),
             .fp32_sums = sums && sums->scalar_type() == ScalarType::Float};
  const int64_t floats = narrow::partial_floats(p, scope.facts().sm_count);
  Tensor partial;
  if (floats > 0) {
    partial = new_dense(*sums, {floats}, ScalarType::Float);
    p.partial = static_cast<float*>(partial.mutable_data_ptr());
  }
  const char* failure = run(p, scope.context());
  FUSEDOPS_CHECK(failure == nullptr, op, ": the launch failed: ", failure);
  return true;
}

}  // namespace fusedops
