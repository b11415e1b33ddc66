// The rows of an edge MLP, and the gradient of its first layer, on CUDA.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/points/edges/edge_check.h"
#include "csrc/cuda/points/edges/edge_first.cuh"
#include "csrc/cuda/points/edges/edge_list.cuh"
#include "csrc/cuda/points/edges/edge_products.cuh"
#include "csrc/cuda/points/edges/edge_tensors.h"

namespace fusedops::cuda {
namespace {

unsigned blocks_for(int64_t threads, int block) {
  return static_cast<unsigned>(ceil_div(threads, int64_t{block}));
}

EdgeEntries entries_of(const char* op, const Tensor& idx, int64_t n) {
  // NOTE: a block may count that far behind the last row.
  constexpr int64_t kMaxEntries = std::numeric_limits<int32_t>::max() - (1 << 16);
  FUSEDOPS_CHECK(idx.scalar_type() == ScalarType::Long, op, ": idx must be int64; got ",
                 dtype_name(idx.scalar_type()));
  check_dim(op, "idx", idx, 3, "(B, M, K)");
  FUSEDOPS_CHECK(idx.numel() > 0 && idx.numel() <= kMaxEntries, op, ": idx must have from 1 to ",
                 kMaxEntries, " entries; got ", idx.numel());
  FUSEDOPS_CHECK(n > 0 && n <= kMaxEntries / idx.size(0), op, ": the clouds must have from 1 to ",
                 kMaxEntries, " points together; got ", idx.size(0), " of ", n);
  // NOTE: places in a group are kept as 8 bits a lane.
  FUSEDOPS_CHECK(idx.size(2) <= kEdgeMaxNeighbours, op, ": idx must have at most ",
                 kEdgeMaxNeighbours, " neighbours; got ", idx.size(2));
  return {static_cast<const int64_t*>(idx.const_data_ptr()), idx.size(0) * idx.size(1), idx.size(1),
          n, static_cast<int>(idx.size(2))};
}

Tensor edge_counts(const Tensor& idx,  // (B, M, K)
                   int64_t n) {
  constexpr const char* kOp = "edge_counts";
  // Guard
  const LaunchScope scope(kOp, idx);

  // Contract, checks
  const Tensor places = dense(idx);
  const EdgeEntries entries = entries_of(kOp, places, n);

  // Allocate, launch
  const Tensor counts = new_dense(idx, {entries.groups}, ScalarType::Int);
  edge_count_kernel<<<blocks_for(32 * entries.groups, kEdgeListThreads), kEdgeListThreads, 0,
                      scope.stream()>>>(entries, write<int>(counts));

  // Launch check
  check_launch(kOp);
  return counts;
}

// What edge_list makes operands of, contiguous.
struct OperandArguments {
  OptionalTensor points, centers, features;

  int64_t planes() const { return features ? 2 : points ? 1 : 0; }
};

OperandArguments check_operands(const char* op, const Tensor& idx, int64_t n,
                                const OperandArguments& given, const Tensor& like) {
  const ScalarType fp32 = ScalarType::Float, half = like.scalar_type();
  const int64_t clouds = idx.size(0), groups = idx.size(1);
  int64_t count = 0;
  if (given.features) {
    check_dim(op, "features", *given.features, 3, "(B, N, F)");
    count = given.features->size(2);
    FUSEDOPS_CHECK(count > 0 && count <= kEdgeMostFeatures, op, ": features must have from 1 to ",
                   kEdgeMostFeatures, " channels; got ", count);
  }
  return {check_edge_tensor(op, "points", given.points, idx, fp32, {clouds, n, 3}),
          check_edge_tensor(op, "centers", given.centers, idx, fp32, {clouds, groups, 3}),
          check_edge_tensor(op, "features", given.features, idx, half, {clouds, n, count})};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> edge_list(const Tensor& idx,           // (B, M, K)
                                                     const OptionalTensor& ends,  // (B * M)
                                                     int64_t n, const OptionalTensor& points,
                                                     const OptionalTensor& centers,
                                                     const OptionalTensor& features,
                                                     const Tensor& like) {
  constexpr const char* kOp = "edge_list";
  // Guard
  const LaunchScope scope(kOp, idx);

  // Contract, checks
  const Tensor places = dense(idx);
  const EdgeEntries entries = entries_of(kOp, places, n);
  const auto ends_ = check_edge_tensor(kOp, "ends", ends, idx, ScalarType::Int, {entries.groups});
  const OperandArguments given = check_operands(kOp, idx, n, {points, centers, features}, like);

  // Allocate
  const ScalarType integer = ScalarType::Int;
  const Tensor list = new_dense(idx, {idx.numel(), 4}, integer);
  const Tensor merged =
      new_dense(idx, {ends ? idx.size(0) : 0, idx.size(1), idx.size(2)}, ScalarType::Long);
  const Tensor own_ends = new_dense(idx, {ends ? 0 : entries.groups}, integer);
  const Tensor operands =
      new_dense(idx, {given.planes(), idx.numel(), kEdgePlane}, like.scalar_type());

  // Launch
  dispatch_like(kOp, "like", like, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    const EdgeOperands<T> to{
        .points = read<float>(given.points),
        .centers = read<float>(given.centers),
        .features = read<T>(given.features),
        .count = static_cast<int>(given.features ? given.features->size(2) : 0),
        .edges = idx.numel(),
        .out = given.planes() ? write<T>(operands) : nullptr};
    const EdgeListResults results{.list = write<int4>(list),
                                  .merged = ends ? write<int64_t>(merged) : nullptr,
                                  .ends = ends ? nullptr : write<int>(own_ends)};
    edge_list_kernel<<<blocks_for(32 * entries.groups, kEdgeListThreads), kEdgeListThreads, 0,
                       scope.stream()>>>(entries, read<int>(ends_), to, results);
  });

  // Launch check
  check_launch(kOp);
  return {list, merged, own_ends, operands};
}

Tensor edge_moments(const Tensor& list, const Tensor& ends, const OptionalTensor& points,
                    const OptionalTensor& centers) {
  constexpr const char* kOp = "edge_moments";
  // Guard
  const LaunchScope scope(kOp, list);

  // Checks
  const EdgeList edges = check_edge_list(kOp, list, ends);
  const auto check = [&](const char* name, const OptionalTensor& t) -> OptionalTensor {
    if (!t) return std::nullopt;
    check_dim(kOp, name, *t, 3, "(B, N, 3)");
    return check_edge_tensor(kOp, name, t, list, ScalarType::Float, {t->size(0), t->size(1), 3});
  };
  const auto points_ = check("points", points), centers_ = check("centers", centers);

  // Allocate, launch
  const Tensor out = new_dense(list, {list.size(0), 4}, ScalarType::Float);
  edge_moments_kernel<<<blocks_for(list.size(0), kEdgeFirstThreads), kEdgeFirstThreads, 0,
                        scope.stream()>>>(
      read<int4>(edges.list), read<int>(edges.ends), static_cast<int>(ends.numel()),
      edges.neighbours(), read<float>(points_), read<float>(centers_), write<float4>(out));

  // Launch check
  check_launch(kOp);
  return out;
}

Tensor edge_point_moments(const Tensor& entries, const Tensor& ranges, const Tensor& list,
                          const Tensor& ends, const OptionalTensor& points,
                          const OptionalTensor& centers) {
  constexpr const char* kOp = "edge_point_moments";
  // Guard
  const LaunchScope scope(kOp, list);

  // Checks
  const EdgeList edges = check_edge_list(kOp, list, ends);
  check_dim(kOp, "ranges", ranges, 2, "(P, 2)");
  const int64_t count = ranges.size(0), groups = ends.numel();
  const auto check = [&](const char* name, const OptionalTensor& t, ScalarType type,
                         const std::vector<int64_t>& shape) {
    return check_edge_tensor(kOp, name, t, list, type, shape);
  };
  const auto entries_ = check("entries", entries, ScalarType::Int, {list.size(0)});
  const auto ranges_ = check("ranges", ranges, ScalarType::Int, {count, 2});
  const auto points_ = check("points", points, ScalarType::Float, {count, 3});
  const auto centers_ = check("centers", centers, ScalarType::Float, {groups, 3});

  // Allocate, launch
  const Tensor out = new_dense(list, {count, 4}, ScalarType::Float);
  const EdgePointMoments a{.entries = read<uint32_t>(entries_),
                           .ranges = read<uint2>(ranges_),
                           .list = read<int4>(edges.list),
                           .ends = read<int>(edges.ends),
                           .count = static_cast<int>(count),
                           .k = edges.neighbours(),
                           .points = read<float>(points_),
                           .centers = read<float>(centers_),
                           .out = write<float4>(out)};
  edge_point_moments_kernel<<<blocks_for(count * kEdgeMomentLanes, kEdgeFirstThreads),
                              kEdgeFirstThreads, 0, scope.stream()>>>(a);

  // Launch check
  check_launch(kOp);
  return out;
}

Tensor edge_winners(const Tensor& winners,  // (B, M, C)
                    const Tensor& list, const Tensor& ends, const Tensor& like) {
  constexpr const char* kOp = "edge_winners";
  // Guard
  const LaunchScope scope(kOp, list);

  // Checks
  const EdgeList edges = check_edge_list(kOp, list, ends);
  check_dim(kOp, "winners", winners, 3, "(B, M, C)");
  const int64_t width = winners.size(2);
  const auto winners_ =
      check_edge_tensor(kOp, "winners", winners, list, ScalarType::Int,
                        {winners.size(0), check_edge_groups(kOp, ends, winners.size(0)), width});
  FUSEDOPS_CHECK(width % kEdgeVector == 0, kOp, ": winners must have a multiple of ", kEdgeVector,
                 " channels; got ", width);

  // Allocate, launch
  const Tensor rows = new_dense(list, {list.size(0), width}, like.scalar_type());
  dispatch_like(kOp, "like", like, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    const int64_t threads = list.size(0) * (width / kEdgeVector);
    edge_winners_kernel<<<blocks_for(threads, kEdgeFirstThreads), kEdgeFirstThreads, 0,
                          scope.stream()>>>(read<int>(winners_), read<int4>(edges.list),
                                            read<int>(edges.ends), static_cast<int>(ends.numel()),
                                            edges.neighbours(), static_cast<int>(width),
                                            write<T>(rows));
  });

  // Launch check
  check_launch(kOp);
  return rows;
}

Tensor edge_group_sums(const Tensor& rows, const Tensor& list, const Tensor& ends, bool gathers) {
  constexpr const char* kOp = "edge_group_sums";
  // Guard
  const LaunchScope scope(kOp, list);

  // Checks
  const EdgeList edges = check_edge_list(kOp, list, ends);
  const DType dtype = check_floating(kOp, "rows", rows);
  FUSEDOPS_CHECK(dtype != DType::kFloat64, kOp, ": rows must not be float64");
  FUSEDOPS_CHECK(rows.dim() == (gathers ? 3 : 2) && (gathers || rows.size(0) == list.size(0)), kOp,
                 ": rows must have shape (B, N, C) where they are gathered, else (E, C); got ",
                 shape_string(rows));
  const int64_t width = rows.size(rows.dim() - 1);
  FUSEDOPS_CHECK(width * static_cast<int64_t>(rows.element_size()) % 16 == 0, kOp,
                 ": rows must be multiples of 16 bytes; got ", width, " channels");
  const Tensor contiguous = dense(rows);

  // Allocate, launch
  const Tensor out = new_dense(list, {ends.numel(), width}, ScalarType::Float);
  using Types = Choices<DType::kFloat16, DType::kBFloat16, DType::kFloat32>;
  dispatch(Types{}, dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    const EdgeGroupSums<T> a{.rows = read<T>(contiguous),
                             .list = read<int4>(edges.list),
                             .ends = read<int>(edges.ends),
                             .groups = static_cast<int>(ends.numel()),
                             .k = edges.neighbours(),
                             .width = static_cast<int>(width),
                             .gathers = gathers,
                             .out = write<float>(out)};
    const int64_t threads = ends.numel() * (width * static_cast<int64_t>(sizeof(T)) / 16);
    edge_group_sums_kernel<<<blocks_for(threads, kEdgeFirstThreads), kEdgeFirstThreads, 0,
                             scope.stream()>>>(a);
  });

  // Launch check
  check_launch(kOp);
  return out;
}

// What edge_close reads, contiguous.
struct CloseArguments {
  Tensor sums;
  OptionalTensor affine, dense, moments, own, others, first_weight, coordinates;
};

CloseArguments check_close(const char* op, const CloseArguments& given, ScalarType half) {
  const Tensor& sums = given.sums;
  check_dim(op, "sums", sums, 2, "(R, C)");
  const int64_t rows = sums.size(0), width = sums.size(1);
  const ScalarType fp32 = ScalarType::Float;
  FUSEDOPS_CHECK(width % 32 == 0, op, ": sums must have a multiple of 32 channels; got ", width);
  FUSEDOPS_CHECK(!given.dense || given.moments, op, ": moments must be given where dense is");
  const int64_t planes = given.first_weight ? given.first_weight->size(0) : 0;
  const auto check = [&](const char* name, const OptionalTensor& t, ScalarType type,
                         const std::vector<int64_t>& shape) {
    return check_edge_tensor(op, name, t, sums, type, shape);
  };
  return {*check("sums", sums, fp32, {rows, width}),
          check("affine", given.affine, fp32, {width, 2}),
          check("dense", given.dense, fp32, {width, 2}),
          check("moments", given.moments, fp32, {rows, 4}),
          check("own", given.own, fp32, {rows, width}),
          check("others", given.others, fp32, {rows, width}),
          check("first_weight", given.first_weight, half, {planes, width, kEdgePlane}),
          check("coordinates", given.coordinates, fp32, {rows, 3})};
}

std::tuple<Tensor, Tensor> edge_close(const Tensor& sums,  // (R, C)
                                      const OptionalTensor& affine, const OptionalTensor& dense,
                                      const OptionalTensor& moments, const OptionalTensor& own,
                                      const OptionalTensor& others,
                                      const OptionalTensor& first_weight,
                                      const OptionalTensor& coordinates, const Tensor& like) {
  constexpr const char* kOp = "edge_close";
  // Guard
  const LaunchScope scope(kOp, sums);

  // Checks
  const CloseArguments given =
      check_close(kOp, {sums, affine, dense, moments, own, others, first_weight, coordinates},
                  like.scalar_type());
  const int64_t rows = sums.size(0), width = sums.size(1);

  // Allocate
  const Tensor out = new_dense(sums, {rows, width});
  const Tensor products = new_dense(sums, {coordinates ? width : 0, 3});

  // Config, launch
  constexpr int64_t kRowsOfBlock = 16 * kEdgeCloseRows;
  const int64_t blocks = std::min<int64_t>(std::max<int64_t>(ceil_div(rows, kRowsOfBlock), 1),
                                           4 * scope.facts().sm_count);
  const Tensor partial = new_dense(sums, {coordinates ? blocks : 0, width, 3});
  dispatch_like(kOp, "like", like, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    const EdgeClose<T> a{.sums = read<float>(given.sums),
                         .affine = read<float2>(given.affine),
                         .dense = read<float2>(given.dense),
                         .moments = read<float4>(given.moments),
                         .own = read<float>(given.own),
                         .others = read<float>(given.others),
                         .first_weight = read<T>(given.first_weight),
                         .coordinates = read<float>(given.coordinates),
                         .rows = rows,
                         .width = static_cast<int>(width),
                         .out = write<float>(out),
                         .partial = write<float>(partial)};
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(width / 32));
    edge_close_kernel<<<grid, dim3(32, kEdgeCloseRows), 0, scope.stream()>>>(a);
  });
  if (coordinates) {
    const EdgeValuesEnd end{.partial = write<float>(partial),
                            .blocks = static_cast<int>(blocks),
                            .count = static_cast<int>(width * 3),
                            .out = write<float>(products)};
    edge_values_kernel<<<value_blocks(width * 3), join_block(), 0, scope.stream()>>>(end);
  }

  // Launch check
  check_launch(kOp);
  return {out, products};
}

Tensor edge_products(const Tensor& rows,  // (E, C)
                     const Tensor& list, const Tensor& ends,
                     const Tensor& operands) {  // (planes, E, 8)
  constexpr const char* kOp = "edge_products";
  // Guard
  const LaunchScope scope(kOp, list);

  // Checks
  const EdgeList edges = check_edge_list(kOp, list, ends);
  FUSEDOPS_CHECK(rows.dim() == 2 && rows.size(0) == list.size(0) && rows.size(1) % 32 == 0, kOp,
                 ": rows must have shape (", list.size(0), ", C) with C a multiple of 32; got ",
                 shape_string(rows));
  check_dim(kOp, "operands", operands, 3, "(planes, E, 8)");
  const int64_t width = rows.size(1), planes = operands.size(0);
  FUSEDOPS_CHECK(planes == 1 || planes == 2, kOp, ": operands must have 1 or 2 planes; got ",
                 planes);
  const auto operands_ = check_edge_tensor(kOp, "operands", operands, list, rows.scalar_type(),
                                           {planes, list.size(0), kEdgePlane});
  const auto rows_ =
      check_edge_tensor(kOp, "rows", rows, list, rows.scalar_type(), {rows.size(0), rows.size(1)});

  // Allocate
  const ScalarType fp32 = ScalarType::Float;
  const int64_t values = (width + kEdgeMomentRows) * kEdgeOperandColumns;
  const int64_t blocks = std::min<int64_t>(ceil_div(list.size(0), int64_t{64} * kEdgeProductWarps),
                                           2 * scope.facts().sm_count);
  const Tensor partial = new_dense(list, {blocks, values}, fp32);
  const Tensor out = new_dense(list, {width + kEdgeMomentRows, kEdgeOperandColumns}, fp32);

  // Launch
  dispatch_like(kOp, "rows", rows, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    const EdgeProducts<T> a{.rows = read<T>(rows_),
                            .operands = read<T>(operands_),
                            .list = read<int4>(edges.list),
                            .ends = read<int>(edges.ends),
                            .groups = static_cast<int>(ends.numel()),
                            .k = edges.neighbours(),
                            .width = static_cast<int>(width),
                            .planes = static_cast<int>(planes),
                            .edges = list.size(0),
                            .partial = write<float>(partial)};
    const dim3 grid(static_cast<unsigned>(blocks),
                    static_cast<unsigned>(ceil_div(width, int64_t{kEdgeProductSlice})));
    edge_products_kernel<<<grid, 32 * kEdgeProductWarps, 0, scope.stream()>>>(a);
  });
  const EdgeValuesEnd end{.partial = write<float>(partial),
                          .blocks = static_cast<int>(blocks),
                          .count = static_cast<int>(values),
                          .out = write<float>(out)};
  edge_values_kernel<<<value_blocks(values), join_block(), 0, scope.stream()>>>(end);

  // Launch check
  check_launch(kOp);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("edge_counts", FUSEDOPS_BOX(&edge_counts));
  m.impl("edge_list", FUSEDOPS_BOX(&edge_list));
  m.impl("edge_moments", FUSEDOPS_BOX(&edge_moments));
  m.impl("edge_point_moments", FUSEDOPS_BOX(&edge_point_moments));
  m.impl("edge_winners", FUSEDOPS_BOX(&edge_winners));
  m.impl("edge_group_sums", FUSEDOPS_BOX(&edge_group_sums));
  m.impl("edge_products", FUSEDOPS_BOX(&edge_products));
  m.impl("edge_close", FUSEDOPS_BOX(&edge_close));
}

}  // namespace fusedops::cuda
