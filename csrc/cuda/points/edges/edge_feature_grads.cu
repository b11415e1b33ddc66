// The gradient of features that are a part of an edge MLP's operands, on CUDA.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/launch.h"
#include "csrc/common/int_math.h"
#include "csrc/cuda/points/edges/edge_check.h"
#include "csrc/cuda/points/edges/edge_feature_grads.cuh"
#include "csrc/cuda/points/edges/edge_tensors.h"

namespace fusedops::cuda {
namespace {

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
  const Tensor out = torch::stable::new_empty(features, {rows, count});

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
  m.impl("edge_feature_grads", FUSEDOPS_BOX(&edge_feature_grads));
}

}  // namespace fusedops::cuda
