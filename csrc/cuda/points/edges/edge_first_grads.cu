// The gradients of an edge MLP's first weights and features from their sums, on CUDA.
#include <torch/csrc/stable/library.h>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/launch.h"
#include "csrc/common/int_math.h"
#include "csrc/cuda/points/edges/edge_check.h"
#include "csrc/cuda/points/edges/edge_first.cuh"
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
  const Tensor out = new_dense(weight, {width, kEdgeOperandColumns});
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

Tensor edge_feature_grads(const Tensor& sums,             // (R, C)
                          const OptionalTensor& affine,   // (C, 2)
                          const OptionalTensor& dense,    // (C, 2)
                          const OptionalTensor& moments,  // (R, 4)
                          const Tensor& first_weight,     // (2, C, 8)
                          const Tensor& features) {       // (R, F)
  constexpr const char* kOp = "edge_feature_grads";
  // Guard
  const LaunchScope scope(kOp, sums);

  // Checks
  check_dim(kOp, "sums", sums, 2, "(R, C)");
  check_dim(kOp, "features", features, 2, "(R, F)");
  const int64_t rows = sums.size(0), width = sums.size(1), count = features.size(1);
  FUSEDOPS_CHECK(width % 4 == 0, kOp, ": sums must have a multiple of 4 channels; got ", width);
  FUSEDOPS_CHECK(!dense || moments, kOp, ": moments must be given where dense is");
  FUSEDOPS_CHECK(count <= kEdgeMostFeatures, kOp, ": features must have up to ", kEdgeMostFeatures,
                 " channels; got ", count);
  const ScalarType fp32 = ScalarType::Float, half = first_weight.scalar_type();
  const auto check = [&](const char* name, const OptionalTensor& t, ScalarType type,
                         const std::vector<int64_t>& shape) {
    return check_edge_tensor(kOp, name, t, sums, type, shape);
  };
  const auto sums_ = check("sums", sums, fp32, {rows, width});
  const auto affine_ = check("affine", affine, fp32, {width, 2});
  const auto dense_ = check("dense", dense, fp32, {width, 2});
  const auto moments_ = check("moments", moments, fp32, {rows, 4});
  const auto weight_ = check("first_weight", first_weight, half, {2, width, kEdgePlane});
  const auto features_ = check("features", features, half, {rows, count});

  // Allocate
  const Tensor out = new_dense(features, {rows, count});

  // Launch
  dispatch_like(kOp, "first_weight", first_weight, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    const EdgeFeatureGrads<T> a{.sums = read<float>(sums_),
                                .affine = read<float2>(affine_),
                                .dense = read<float2>(dense_),
                                .moments = read<float4>(moments_),
                                .first_weight = read<T>(weight_),
                                .features = read<T>(features_),
                                .rows = rows,
                                .width = static_cast<int>(width),
                                .count = static_cast<int>(count),
                                .out = write<T>(out)};
    if (out.numel() == 0) return;
    const auto blocks = static_cast<unsigned>(ceil_div(rows, int64_t{kEdgeFeatureThreads}));
    const auto launch = [&]<int kColumns>(Tag<kColumns>) {
      edge_feature_grads_kernel<T, kColumns><<<blocks, kEdgeFeatureThreads, 0, scope.stream()>>>(a);
    };
    dispatch(Choices<4, 8, 12>{}, static_cast<int>(round_up(count, int64_t{4})), launch);
  });

  // Launch check
  check_launch(kOp);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("edge_first_grads", FUSEDOPS_BOX(&edge_first_grads));
  m.impl("edge_feature_grads", FUSEDOPS_BOX(&edge_feature_grads));
}

}  // namespace fusedops::cuda
