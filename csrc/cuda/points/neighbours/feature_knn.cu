// Launches of feature_knn.cuh.
#include <algorithm>

#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/points/neighbours/feature_knn.cuh"
#include "csrc/cuda/points/neighbours/neighbour_output.cuh"

namespace fusedops::cuda {
namespace {

constexpr int kSharedPerSm = 227 * 1024;

FeatureLayout layout_with(const NeighbourTensors& in, int64_t k, int stages) {
  FeatureLayout layout;
  layout.width = feature_width(static_cast<int>(in.points.view.dim));
  layout.stride = layout.width + kFeaturePad;
  layout.splits = in.points.dtype == DType::kBFloat16 ? 1 : 2;
  layout.stages = stages;
  layout.list = k <= 32 ? 32 : k <= 64 ? 64 : 128;
  // 1.2 to 1.4 k candidates are expected, and up to 32 come at once
  layout.room = k <= 32 ? 96 : k <= 64 ? 160 : 224;
  layout.scratch = k <= 32 ? 0 : k <= 64 ? 256 : 512;
  return layout;
}

// Two stages, unless one lets more blocks share an SM. Its bytes may exceed what a block can have.
FeatureLayout feature_layout(const NeighbourTensors& in, int64_t k) {
  const FeatureLayout one = layout_with(in, k, 1);
  const FeatureLayout two = layout_with(in, k, 2);
  const auto blocks = [](const FeatureLayout& layout) {
    return std::min(kSharedPerSm / (layout.bytes() + 1024), 3);
  };
  return blocks(one) > blocks(two) ? one : two;
}

struct PreparedRows {
  Tensor bytes;
  FeatureRows rows;
};

template <class S>
PreparedRows prepare(const LaunchScope& scope, const CloudTensors& clouds, bool split) {
  const int64_t count = clouds.view.num_rows();
  const int dim = static_cast<int>(clouds.view.dim);
  const int64_t part = count * feature_width(dim) * 2;
  const Tensor bytes = empty_bytes(clouds.points, part * (split ? 2 : 1) + count * 4);
  char* base = static_cast<char*>(bytes.mutable_data_ptr());
  const FeatureRows rows{reinterpret_cast<__nv_bfloat16*>(base),
                         split ? reinterpret_cast<__nv_bfloat16*>(base + part) : nullptr,
                         reinterpret_cast<float*>(base + part * (split ? 2 : 1))};
  if (count > 0) {
    feature_prepare_kernel<S>
        <<<static_cast<unsigned>(ceil_div(count, 8)), 256, 0, scope.stream()>>>(
            static_cast<const S*>(clouds.view.points), count, dim, feature_slack(dim, split), rows);
  }
  return {bytes, rows};
}

template <class S, bool Split, int Sets>
void launch_features(const LaunchScope& scope, const NeighbourTensors& in,
                     const NeighbourOutput<float>& out, FeatureLayout layout) {
  const PreparedRows points = prepare<S>(scope, in.points, Split);
  const bool self = in.queries.view.points == in.points.view.points &&
                    in.queries.view.num_rows() == in.points.view.num_rows();
  const PreparedRows queries = self ? points : prepare<S>(scope, in.queries, Split);
  const auto aligned = [&](size_t bytes) {
    const auto at = [&](const void* data) { return reinterpret_cast<uintptr_t>(data) % bytes; };
    return in.points.view.dim * sizeof(S) % bytes == 0 && at(in.points.view.points) == 0 &&
           at(in.queries.view.points) == 0;
  };
  const bool vectors = aligned(4 * sizeof(S));
  layout.staged = layout.list == 32 && aligned(16);
  constexpr auto kernel = &feature_knn_kernel<S, Split, Sets>;
  allow_any_shared_memory<kernel>();
  const int64_t groups = num_row_groups(in.queries.view, kFeatureGroupBits);
  kernel<<<static_cast<unsigned>(groups), kFeatureWarps * 32, layout.bytes(), scope.stream()>>>(
      in.points.view, in.queries.view, points.rows, queries.rows, out, layout,
      feature_slack(static_cast<int>(in.points.view.dim), Split), vectors);
}

}  // namespace

bool can_search_features(const LaunchScope& scope, const NeighbourTensors& in, int64_t k,
                         int64_t norm) {
  return suits_tensor_cores(in.points, k, norm) &&
         feature_layout(in, k).bytes() <= scope.facts().shared_memory_per_block;
}

void search_features(const LaunchScope& scope, const NeighbourTensors& in,
                     const NeighbourQuery& query, const Neighbours& neighbours) {
  const NeighbourOutput<float> out = output_view<float>(neighbours, query.k);
  fill_unused_rows(scope, in, out);
  const FeatureLayout layout = feature_layout(in, query.k);
  dispatch(Choices<DType::kFloat16, DType::kBFloat16, DType::kFloat32>{}, in.points.dtype,
           [&]<DType D>(Tag<D>) {
             // Bins: at least twice k
             dispatch(Choices<1, 2, 4>{}, layout.list / 32, [&]<int Sets>(Tag<Sets>) {
               launch_features<DeviceType<D>, D != DType::kBFloat16, Sets>(scope, in, out, layout);
             });
           });
}

}  // namespace fusedops::cuda
