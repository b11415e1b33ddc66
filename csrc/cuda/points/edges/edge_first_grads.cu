// The gradients of an edge MLP's first weights from their sums, on CUDA.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/launch.h"
#include "csrc/common/int_math.h"
#include "csrc/cuda/points/edges/edge_check.h"
#include "csrc/cuda/points/edges/edge_products.cuh"
#include "csrc/cuda/points/edges/edge_tensors.h"

namespace fusedops::cuda {
namespace {

inline constexpr int kFirstGradThreads = 128;

Tensor edge_first_grads(const Tensor& products,        // (C + 32, 16)
                        const OptionalTensor& affine,  // (C, 2)
                        const OptionalTensor& dense,   // (C, 2)
                        const Tensor& weight) {        // (planes, C, 8)
  constexpr const char* kOp = "edge_first_grads";
  // Guard
  const LaunchScope scope(kOp, products);

  // Checks
  check_dim(kOp, "weight", weight, 3, "(planes, C, 8)");
  const int64_t planes = weight.size(0), width = weight.size(1);
  FUSEDOPS_CHECK(planes == 1 || planes == 2, kOp, ": weight must have 1 or 2 planes; got ", planes);
  const ScalarType fp32 = ScalarType::Float;
  const auto check = [&](const char* name, const OptionalTensor& t, ScalarType type,
                         const std::vector<int64_t>& shape) {
    return check_edge_tensor(kOp, name, t, products, type, shape);
  };
  const auto products_ =
      check("products", products, fp32, {width + kEdgeMomentRows, kEdgeOperandColumns});
  const auto affine_ = check("affine", affine, fp32, {width, 2});
  const auto dense_ = check("dense", dense, fp32, {width, 2});

  // Allocate
  const Tensor out = torch::stable::new_empty(weight, {width, kEdgeOperandColumns});
  if (width == 0) return out;

  // Launch
  dispatch_like(kOp, "weight", weight, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    const auto weight_ = check("weight", weight, weight.scalar_type(), {planes, width, kEdgePlane});
    const EdgeFirstGrads<T> a{.products = read<float>(products_),
                              .affine = read<float2>(affine_),
                              .dense = read<float2>(dense_),
                              .weight = read<T>(weight_),
                              .width = static_cast<int>(width),
                              .planes = static_cast<int>(planes),
                              .out = write<T>(out)};
    const int64_t blocks = ceil_div(width * kEdgeOperandColumns, int64_t{kFirstGradThreads});
    edge_first_grads_kernel<<<static_cast<unsigned>(blocks), kFirstGradThreads, 0,
                              scope.stream()>>>(a);
  });

  // Launch check
  check_launch(kOp);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("edge_first_grads", FUSEDOPS_BOX(&edge_first_grads));
}

}  // namespace fusedops::cuda
