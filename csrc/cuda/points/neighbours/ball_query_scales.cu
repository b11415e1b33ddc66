// Neighbours within several radii on CUDA: ball_query_scales.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <tuple>
#include <vector>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/points/index/monotone_offsets.h"
#include "csrc/cuda/points/neighbours/ball_query.cuh"
#include "csrc/cuda/points/neighbours/ball_scales.cuh"
#include "csrc/cuda/points/neighbours/neighbour_output.cuh"

namespace fusedops::cuda {
namespace {

constexpr int kAnyWarps = 4;
constexpr int kScalesBusyWarps = 24;  // of an SM, before a warp takes more queries

// The radii of a call and where their answers go.
struct Scales {
  std::vector<double> bounds;  // squared radii
  std::vector<int64_t> ks;
  int64_t *index, *counts;
  int64_t rows;
  bool pad_first, closed;

  template <class T>
  NeighbourOutput<T> output(size_t s) const {
    int64_t* at = index;
    for (size_t i = 0; i < s; ++i) at += rows * ks[i];
    return {at, nullptr, counts + static_cast<int64_t>(s) * rows, ks[s], pad_first};
  }
};

// All radii in one launch.
void launch_together(const LaunchScope& scope, const NeighbourTensors& in, const Scales& scales) {
  const Clouds& queries = in.queries.view;
  const bool pairs = queries.num_rows() >= scope.facts().sm_count * kScalesBusyWarps * 2;
  dispatch(Choices<1, 2, 3, 4>{}, static_cast<int>(scales.ks.size()), [&]<int S>(Tag<S>) {
    BallScales<S> out{};
    out.pad_first = scales.pad_first;
    for (int s = 0; s < S; ++s) {
      const auto to = scales.output<float>(s);
      out.scale[s] = {to.index, to.counts, to.k,
                      limit_bits<float>(scales.bounds[s], scales.closed)};
    }
    dispatch(Choices<0, 1>{}, pairs ? 1 : 0, [&]<int Bits>(Tag<Bits>) {
      constexpr int kGroupBits = Bits + 4;
      static_assert(kBallWarps << Bits == 1 << kGroupBits);
      ball_scales_kernel<1 << Bits, S>
          <<<static_cast<unsigned>(num_row_groups(queries, kGroupBits)), kBallWarps * 32, 0,
             scope.stream()>>>(in.points.view, queries, in.points.dtype, out, kGroupBits);
    });
  });
}

// A launch a radius: dimensions and dtypes that launch_together does not take.
void launch_apart(const LaunchScope& scope, const NeighbourTensors& in, const Scales& scales) {
  const Clouds& queries = in.queries.view;
  dispatch_dtype(in.points.dtype, [&]<DType D>(Tag<D>) {
    using S = DeviceType<D>;
    using T = Compute<S>;
    for (size_t s = 0; s < scales.ks.size(); ++s) {
      const auto to = scales.output<T>(s);
      const BallOutput<T> out{to.index, nullptr, to.counts, nullptr, to.k, 0, to.pad_first};
      ball_any_kernel<S, T><<<static_cast<unsigned>(num_row_groups(queries, 2)), kAnyWarps * 32, 0,
                              scope.stream()>>>(in.points.view, queries, out,
                                                limit_bits<T>(scales.bounds[s], scales.closed), 2);
    }
  });
}

std::tuple<Tensor, Tensor> ball_query_scales(const Tensor& points,   // (B, N, D) or (P, D)
                                             const Tensor& queries,  // (B, M, D) or (Q, D)
                                             const std::optional<Tensor>& lengths,
                                             const std::optional<Tensor>& query_lengths,
                                             const std::optional<Tensor>& offsets,
                                             const std::optional<Tensor>& query_offsets,
                                             std::vector<double> radii, std::vector<int64_t> ks,
                                             bool pad_first, bool closed) {
  // Guard
  const LaunchScope scope("ball_query_scales", points);

  // Contract, checks
  const NeighbourTensors in =
      with_monotone_offsets(scope, check_ball_query_scales(points, queries, lengths, query_lengths,
                                                           offsets, query_offsets, radii, ks));

  // Allocate
  Tensor index = new_dense(points, {scales_total(in.queries, ks)}, ScalarType::Long);
  Tensor counts = new_dense(points, rows_of_scales(in.queries, ks), ScalarType::Long);

  // Empty early return
  const int64_t rows = in.queries.view.num_rows();
  if (rows == 0) return {index, counts};
  if (in.queries.view.count == 0) {
    torch::stable::fill_(index, -1);
    torch::stable::zero_(counts);
    return {index, counts};
  }

  // Launch
  Scales scales{{},
                ks,
                static_cast<int64_t*>(index.mutable_data_ptr()),
                static_cast<int64_t*>(counts.mutable_data_ptr()),
                rows,
                pad_first,
                closed};
  for (const double radius : radii) {
    scales.bounds.push_back(squared_radius(radius, in.points.dtype));
  }
  for (size_t s = 0; s < ks.size(); ++s) fill_unused_rows(scope, in, scales.output<float>(s));
  const bool together = in.points.view.dim == 3 && in.points.dtype != DType::kFloat64;
  together ? launch_together(scope, in, scales) : launch_apart(scope, in, scales);

  // Launch check
  check_launch("ball_query_scales");
  return {index, counts};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("ball_query_scales", FUSEDOPS_BOX(&ball_query_scales));
}

}  // namespace fusedops::cuda
