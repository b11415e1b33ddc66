// cumsum, cumprod, cummax and cummin on CUDA.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/grid_limits.h"
#include "csrc/common/host/launch.h"
#include "csrc/common/int_math.h"
#include "csrc/cuda/scan/scan.h"

namespace fusedops {
namespace {

using ScanFn = void (*)(ScanCall&);
constexpr ScanFn kScans[] = {scan_sum, scan_prod, scan_max, scan_min};  // by ScanKind

}  // namespace

ScanNeeds scan_needs(const Scan& scan) {
  ScanCall call{.scan = scan, .size_only = true};
  kScans[static_cast<int>(scan.kind)](call);
  return call.needs;
}

void launch_scan(const Scan& scan, cudaStream_t stream) {
  ScanCall call{.scan = scan, .size_only = false, .stream = stream};
  kScans[static_cast<int>(scan.kind)](call);
}

namespace cuda {
namespace {

Tensor copy_lines(const char* op, const Tensor& x, const Tensor& y, const Tensor* index,
                  cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(y.numel()) * y.element_size();
  cudaMemcpyAsync(y.mutable_data_ptr(), x.const_data_ptr(), bytes, cudaMemcpyDeviceToDevice,
                  stream);
  if (index != nullptr) {
    const auto positions = static_cast<size_t>(y.numel()) * sizeof(int64_t);
    cudaMemsetAsync(index->mutable_data_ptr(), 0, positions, stream);
  }
  check_launch(op);
  return y;
}

// `index` is written by kMax and kMin.
Tensor run(const char* op, ScanKind kind, const Tensor& x, int64_t dim, bool exclusive,
           bool reverse, Tensor* index) {
  // Guard
  const LaunchScope scope(op, x);

  // Checks
  const Element element = check_number(op, "x", x);
  const auto [shape, input] = scan_shape(op, x, dim);

  // Allocate
  Tensor y = new_dense(x, x.sizes(), scan_dtype(kind, x, element));
  if (index != nullptr) *index = new_dense(x, x.sizes(), ScalarType::Long);

  // Empty early return
  if (x.numel() == 0) return y;

  // Lines of one element are their own results
  const bool dense = shape.outer == 1 || shape.outer_stride == shape.inner;
  if (shape.n == 1 && dense && !exclusive && y.scalar_type() == x.scalar_type()) {
    return copy_lines(op, input, y, index, scope.stream());
  }

  // Config
  Scan scan{.element = element,
            .kind = kind,
            .shape = shape,
            .x = input.const_data_ptr(),
            .y = y.mutable_data_ptr(),
            .index = index ? static_cast<int64_t*>(index->mutable_data_ptr()) : nullptr,
            .exclusive = exclusive,
            .reverse = reverse,
            .sm_count = scope.facts().sm_count,
            .clusters = scope.facts().code_version >= 90};
  const auto [bytes, blocks] = scan_needs(scan);
  FUSEDOPS_CHECK(blocks <= kMaxGrid, op, ": x of shape ", shape_string(x), " along dim ", dim,
                 " needs ", blocks, " blocks; a CUDA grid has at most ", kMaxGrid);
  const Tensor workspace =
      bytes > 0 ? new_dense(x, {ceil_div(bytes, int64_t{8})}, ScalarType::Long) : y;
  scan.workspace = workspace.mutable_data_ptr();

  // Launch
  launch_scan(scan, scope.stream());

  // Launch check
  check_launch(op);
  return y;
}

Tensor cumsum(const Tensor& x, int64_t dim, bool exclusive, bool reverse) {
  return run("cumsum", ScanKind::kSum, x, dim, exclusive, reverse, nullptr);
}

Tensor cumprod(const Tensor& x, int64_t dim, bool exclusive, bool reverse) {
  return run("cumprod", ScanKind::kProd, x, dim, exclusive, reverse, nullptr);
}

std::tuple<Tensor, Tensor> cummax(const Tensor& x, int64_t dim) {
  Tensor index;
  Tensor y = run("cummax", ScanKind::kMax, x, dim, false, false, &index);
  return {y, index};
}

std::tuple<Tensor, Tensor> cummin(const Tensor& x, int64_t dim) {
  Tensor index;
  Tensor y = run("cummin", ScanKind::kMin, x, dim, false, false, &index);
  return {y, index};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("cumsum", FUSEDOPS_BOX(&cumsum));
  m.impl("cumprod", FUSEDOPS_BOX(&cumprod));
  m.impl("cummax", FUSEDOPS_BOX(&cummax));
  m.impl("cummin", FUSEDOPS_BOX(&cummin));
}

}  // namespace cuda
}  // namespace fusedops
