// One layer over the edges of points among themselves, on CUDA.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/points/edges/edge_check.h"
#include "csrc/cuda/points/edges/edge_conv.cuh"
#include "csrc/cuda/points/edges/edge_tensors.h"

namespace fusedops::cuda {
namespace {

// What both passes are given, contiguous.
struct ConvArguments {
  Tensor products, idx;
  EdgeConvProblem problem;
  int64_t clouds, n, channels;
};

ConvArguments check_conv(const char* op, const Tensor& products, const Tensor& idx, int64_t width) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  check_dim(op, "products", products, 3, "(B, N, 2 C)");
  const int64_t clouds = products.size(0), n = products.size(1), channels = products.size(2) / 2;
  FUSEDOPS_CHECK(products.size(2) > 0 && products.size(2) % 16 == 0, op,
                 ": products must have twice a multiple of 8 channels; got ", products.size(2));
  FUSEDOPS_CHECK((width == 64 || width % 128 == 0) && channels <= width, op,
                 ": affine must have 64 or a multiple of 128 rows, at least ", channels, "; got ",
                 width);
  check_dim(op, "idx", idx, 3, "(B, N, K)");
  FUSEDOPS_CHECK(idx.numel() > 0 && idx.numel() <= kMost, op, ": idx must have from 1 to ", kMost,
                 " entries; got ", idx.numel());
  FUSEDOPS_CHECK(idx.size(2) <= kEdgeMaxNeighbours, op, ": idx must have at most ",
                 kEdgeMaxNeighbours, " neighbours; got ", idx.size(2));
  const auto products_ = check_edge_tensor(op, "products", products, idx, ScalarType::Float,
                                           {clouds, n, 2 * channels});
  const auto idx_ =
      check_edge_tensor(op, "idx", idx, products, ScalarType::Long, {clouds, n, idx.size(2)});
  return {*products_,
          *idx_,
          {.idx = static_cast<const int64_t*>(idx_->const_data_ptr()),
           .points = clouds * n,
           .n = static_cast<int>(n),
           .k = static_cast<int>(idx.size(2)),
           .channels = static_cast<int>(channels),
           .width = static_cast<int>(width)},
          clouds,
          n,
          channels};
}

template <auto kKernel, class Arguments>
void launch_conv(const Arguments& a, dim3 grid, cudaStream_t stream) {
  kKernel<<<grid, kEdgeConvThreads, 0, stream>>>(a);
}

template <class T, int kLanes>
void launch_forward(const EdgeConvForward<T>& a, dim3 grid, cudaStream_t stream) {
  if (a.out) {
    launch_conv<&edge_conv_forward_kernel<T, kLanes, false, false>>(a, grid, stream);
  } else if (a.sums) {
    launch_conv<&edge_conv_forward_kernel<T, kLanes, true, true>>(a, grid, stream);
  } else {
    launch_conv<&edge_conv_forward_kernel<T, kLanes, true, false>>(a, grid, stream);
  }
}

// Lanes of a point, slices of its channels, and blocks that are resident at once.
struct ConvGrid {
  int lanes;
  int64_t slices, blocks;

  ConvGrid(const EdgeConvProblem& p, bool sums, int sm_count)
      : lanes(p.width == 64 ? 16 : 32), slices(p.width / (lanes * kEdgeConvVector)) {
    const int64_t resident = int64_t{sums ? 2 : 3} * sm_count;
    blocks = std::min<int64_t>(ceil_div(p.points, int64_t{kEdgeConvThreads / lanes}),
                               std::max<int64_t>(resident / slices, 1));
  }

  dim3 grid() const { return {static_cast<unsigned>(blocks), static_cast<unsigned>(slices), 1}; }
};

struct ConvResults {
  Tensor out, best, which, totals, normed, stats, partial;
};

ConvResults allocate_conv(const ConvArguments& a, const Tensor& like, bool infer, bool sums,
                          int64_t blocks) {
  const ScalarType fp32 = ScalarType::Float;
  const std::vector<int64_t> pooled{a.clouds, a.n, a.channels};
  const int64_t width = a.problem.width;
  const auto empty = [&](bool wanted, const std::vector<int64_t>& shape, ScalarType type) {
    return new_dense(a.products, wanted ? shape : std::vector<int64_t>{0}, type);
  };
  return {.out = empty(infer, pooled, like.scalar_type()),
          .best = empty(!infer, pooled, fp32),
          .which = empty(!infer, pooled, ScalarType::Short),
          .totals = empty(sums, pooled, fp32),
          .normed = empty(sums, {width, 2}, fp32),
          .stats = empty(sums, {kEdgeStats, width}, fp32),
          .partial = empty(sums, {blocks, 2 * width + 1}, fp32)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> edge_conv_forward(
    Tensor products,       // (B, N, 2 C)
    const Tensor& idx,     // (B, N, K)
    const Tensor& affine,  // (width, 2)
    const Tensor& like, double slope, bool infer, bool sums, double eps) {
  constexpr const char* kOp = "edge_conv_forward_";
  // Guard
  const LaunchScope scope(kOp, products);

  // Checks
  check_dim(kOp, "affine", affine, 2, "(C, 2)");
  const int64_t width = affine.size(0);
  const ConvArguments given = check_conv(kOp, products, idx, width);
  FUSEDOPS_CHECK(given.products.const_data_ptr() == products.const_data_ptr(), kOp,
                 ": products are written: they must be contiguous and aligned to 16 bytes");
  FUSEDOPS_CHECK(!(infer && sums), kOp, ": infer or sums must be asked for, and not both");
  const auto affine_ =
      check_edge_tensor(kOp, "affine", affine, products, ScalarType::Float, {width, 2});

  // Config, allocate
  const ConvGrid grid(given.problem, sums, scope.facts().sm_count);
  const ConvResults to = allocate_conv(given, like, infer, sums, grid.blocks);

  // Launch
  dispatch_like(kOp, "like", like, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    const EdgeConvForward<T> a{.problem = given.problem,
                               .products = write<float>(given.products),
                               .affine = read<float2>(affine_),
                               .slope = static_cast<float>(slope),
                               .out = infer ? write<T>(to.out) : nullptr,
                               .best = infer ? nullptr : write<float>(to.best),
                               .which = infer ? nullptr : write<int16_t>(to.which),
                               .totals = sums ? write<float>(to.totals) : nullptr,
                               .sums = sums ? write<float>(to.partial) : nullptr};
    if (grid.lanes == 16) {
      launch_forward<T, 16>(a, grid.grid(), scope.stream());
    } else {
      launch_forward<T, 32>(a, grid.grid(), scope.stream());
    }
  });
  if (sums) {
    const EdgeStatistics statistics{.partial = write<float>(to.partial),
                                    .blocks = static_cast<int>(grid.blocks),
                                    .width = static_cast<int>(width),
                                    .given = read<float2>(affine_),
                                    .channels = static_cast<int>(width),
                                    .eps = static_cast<float>(eps),
                                    .affine = write<float2>(to.normed),
                                    .stats = write<float>(to.stats)};
    edge_statistics_kernel<<<join_blocks(width), join_block(), 0, scope.stream()>>>(statistics);
  }

  // Launch check
  check_launch(kOp);
  return {to.out, to.best, to.which, to.totals, to.normed, to.stats};
}

std::tuple<Tensor, Tensor> edge_conv_backward(const Tensor& products,  // (B, N, 2 C)
                                              const Tensor& idx,       // (B, N, K)
                                              const Tensor& winners,   // (B, N, width)
                                              const OptionalTensor& totals,
                                              const OptionalTensor& dense, const Tensor& entries,
                                              const Tensor& ranges, const Tensor& like) {
  constexpr const char* kOp = "edge_conv_backward";
  // Guard
  const LaunchScope scope(kOp, products);

  // Checks
  check_dim(kOp, "winners", winners, 3, "(B, N, C)");
  const int64_t width = winners.size(2);
  const ConvArguments given = check_conv(kOp, products, idx, width);
  FUSEDOPS_CHECK(totals.has_value() == dense.has_value(), kOp,
                 ": totals and dense must come together");
  const ScalarType fp32 = ScalarType::Float, integer = ScalarType::Int;
  const auto check = [&](const char* name, const OptionalTensor& t, ScalarType type,
                         const std::vector<int64_t>& shape) {
    return check_edge_tensor(kOp, name, t, products, type, shape);
  };
  const auto winners_ = check("winners", winners, integer, {given.clouds, given.n, width});
  const auto totals_ = check("totals", totals, fp32, {given.clouds, given.n, given.channels});
  const auto dense_ = check("dense", dense, fp32, {width, 2});
  const auto entries_ = check("entries", entries, integer, {idx.numel()});
  const auto ranges_ = check("ranges", ranges, integer, {given.problem.points, 2});

  // Allocate
  const Tensor out =
      new_dense(products, {given.clouds, given.n, 2 * given.channels}, like.scalar_type());
  const Tensor used = new_dense(products, {given.clouds, given.n}, ScalarType::Bool);

  // Config, launch
  const int lanes = ConvGrid(given.problem, false, scope.facts().sm_count).lanes;
  dispatch_like(kOp, "like", like, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    const EdgeConvBackward<T> a{
        .problem = given.problem,
        .products = static_cast<const float*>(given.products.const_data_ptr()),
        .winners = read<int>(winners_),
        .totals = read<float>(totals_),
        .entries = read<uint32_t>(entries_),
        .ranges = read<uint2>(ranges_),
        .dense = read<float2>(dense_),
        .out = write<T>(out),
        .used = write<bool>(used)};
    const dim3 grid(
        static_cast<unsigned>(ceil_div(given.problem.points, int64_t{kEdgeConvThreads / lanes})),
        static_cast<unsigned>(width / (lanes * kEdgeConvVector)));
    if (lanes == 16) {
      launch_conv<&edge_conv_backward_kernel<T, 16>>(a, grid, scope.stream());
    } else {
      launch_conv<&edge_conv_backward_kernel<T, 32>>(a, grid, scope.stream());
    }
  });

  // Launch check
  check_launch(kOp);
  return {out, used};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("edge_conv_forward_", FUSEDOPS_BOX(&edge_conv_forward));
  m.impl("edge_conv_backward", FUSEDOPS_BOX(&edge_conv_backward));
}

}  // namespace fusedops::cuda
