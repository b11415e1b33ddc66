#include "cuda/narrow_backward.h"

#include <torch/csrc/stable/ops.h>

#include <limits>

#include "cuda/sm90_narrow.h"

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

// Measured on H200: with fewer rows the sums over rows, which every block has, cost more than the
// passes over dz that the kernel saves.
int64_t min_rows(const LinearShape& shape, const NarrowGradients& wanted) {
  if (shape.n <= 128 || shape.k <= 64) return 1024;
  return wanted.dx ? 16384 : 32768;
}

bool readable(const MatrixView& view) {
  return view.col_stride == 1 && view.row_stride >= view.cols && view.row_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

bool fits(int64_t features) {
  return features >= narrow::kMinFeatures && features <= narrow::kMaxFeatures && features % 8 == 0;
}

bool pays(const LinearShape& shape, const NarrowGradients& wanted) {
  // Without dz to share, dx and dweight alone are plain products.
  const bool shares =
      shape.activation != Activation::kNone || wanted.dbias || (wanted.dx && wanted.dweight);
  return shape.m >= min_rows(shape, wanted) && (wanted.dx || wanted.dweight) && shares;
}

bool takes(const LinearShape& shape, const NarrowOperands& t, const NarrowGradients& wanted) {
  const bool half = shape.dtype == DType::kFloat16 || shape.dtype == DType::kBFloat16;
  return half && fits(shape.n) && fits(shape.k) && pays(shape, wanted) &&
         shape.m <= std::numeric_limits<int32_t>::max() - narrow::kTileRows && readable(t.dy) &&
         (t.saved.data == nullptr || readable(t.saved)) && (!wanted.dweight || readable(t.x)) &&
         (!wanted.dx || readable(t.weight));
}

void* out_pointer(const Tensor* tensor) { return tensor ? tensor->mutable_data_ptr() : nullptr; }

}  // namespace

bool run_narrow_backward(const char* op, const LinearShape& shape, const NarrowOperands& t,
                         const NarrowGradients& wanted, const LaunchScope& scope) {
  const narrow::RunFn run = narrow::find_kernels();
  if (run == nullptr || scope.facts().capability / 10 != 9 || !takes(shape, t, wanted)) {
    return false;
  }
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
    partial = torch::stable::empty({floats}, ScalarType::Float, std::nullopt, sums->device());
    p.partial = static_cast<float*>(partial.mutable_data_ptr());
  }
  const char* failure = run(p, scope.context());
  FUSEDOPS_CHECK(failure == nullptr, op, ": the launch failed: ", failure);
  return true;
}

}  // namespace fusedops
