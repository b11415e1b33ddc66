// Neighbours within a radius on CUDA: ball_query, radius_count and radius_fill.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/points/index/monotone_offsets.h"
#include "csrc/cuda/points/neighbours/ball_brute.cuh"
#include "csrc/cuda/points/neighbours/ball_query.cuh"
#include "csrc/cuda/points/neighbours/neighbour_output.cuh"

namespace fusedops::cuda {
namespace {

// keys: (row, index) of every entry; values: where the entry is.
__global__ void radius_keys_kernel(const int64_t* __restrict__ starts, int64_t rows,
                                   const int64_t* __restrict__ index, int64_t total, int index_bits,
                                   uint64_t* keys, uint32_t* places) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= total) return;
  int64_t low = 0;
  int64_t high = rows - 1;
  while (low < high) {  // the last row that starts at or before i
    const int64_t middle = (low + high + 1) / 2;
    if (starts[middle] <= i) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  keys[i] = static_cast<uint64_t>(low) << index_bits | static_cast<uint64_t>(index[i]);
  places[i] = static_cast<uint32_t>(i);
}

constexpr int kAnyWarps = 4;
constexpr int kThreads = 256;
constexpr int kBallBusyWarps = 24;  // of an SM, before a warp takes more queries
// Queries that are worth sorting along the curve, and that one sort takes
constexpr int64_t kOrderMinRows = 8192;
constexpr int64_t kOrderMaxRows = int64_t{1} << 31;

bool uses_grid(const NeighbourTensors& in) {
  if (in.points.view.num_rows() == 0) return false;
  return in.grid || in.algorithm == NeighbourAlgorithm::kGrid ||
         (in.algorithm == NeighbourAlgorithm::kAuto && prefers_grid(in, 1));
}

// Launches the search by index, which compares every pair.
template <class T>
void launch_brute(const LaunchScope& scope, const NeighbourTensors& in, const BallOutput<T>& out,
                  KeyBits<T> limit) {
  const Clouds& queries = in.queries.view;
  if constexpr (sizeof(T) == 4) {
    if (in.points.view.dim == 3) {
      const auto fits = [&](int64_t per_warp) {
        return queries.num_rows() >= scope.facts().sm_count * kBallBusyWarps * per_warp;
      };
      const int bits = fits(4) ? 2 : fits(2) ? 1 : 0;
      dispatch(Choices<0, 1, 2>{}, bits, [&]<int Bits>(Tag<Bits>) {
        constexpr int kGroupBits = Bits + 4;
        static_assert(kBallWarps << Bits == 1 << kGroupBits);
        ball_brute_kernel<1 << Bits>
            <<<static_cast<unsigned>(num_row_groups(queries, kGroupBits)), kBallWarps * 32, 0,
               scope.stream()>>>(in.points.view, queries, in.points.dtype, out, limit, kGroupBits);
      });
      return;
    }
  }
  dispatch_dtype(in.points.dtype, [&]<DType D>(Tag<D>) {
    using S = DeviceType<D>;
    if constexpr (std::is_same_v<Compute<S>, T>) {
      ball_any_kernel<S, T><<<static_cast<unsigned>(num_row_groups(queries, 2)), kAnyWarps * 32, 0,
                              scope.stream()>>>(in.points.view, queries, out, limit, 2);
    }
  });
}

template <class T>
void launch_grid_radius(const LaunchScope& scope, const NeighbourTensors& in,
                        const BallOutput<T>& out, KeyBits<T> limit) {
  const PointGrid<T> grid = in.grid ? view_point_grid<T>(*in.grid, in.points.view)
                                    : build_point_grid<T>(scope, in.points);
  std::optional<Tensor> order;
  const int64_t rows = in.queries.view.num_rows();
  if (rows >= kOrderMinRows && rows < kOrderMaxRows) order = order_queries(scope, in.queries, grid);
  grid_radius_kernel<T><<<static_cast<unsigned>(num_row_groups(in.queries.view, 2)),
                          kGridWarps * 32, 0, scope.stream()>>>(
      in.points.view, grid.view, in.queries.view, in.points.dtype,
      order ? static_cast<const uint32_t*>(order->const_data_ptr()) : nullptr, out, limit, 2);
}

// Zero counts for rows beyond a cloud's length.
void zero_unused(const NeighbourTensors& in, Tensor counts) {
  if (in.queries.view.lengths || in.queries.view.offsets) torch::stable::zero_(counts);
}

std::tuple<Tensor, Tensor, Tensor> ball_query(const Tensor& points,   // (B, N, D) or (P, D)
                                              const Tensor& queries,  // (B, M, D) or (Q, D)
                                              const std::optional<Tensor>& lengths,
                                              const std::optional<Tensor>& query_lengths,
                                              const std::optional<Tensor>& offsets,
                                              const std::optional<Tensor>& query_offsets,
                                              const std::optional<Tensor>& grid, double radius,
                                              int64_t k, bool nearest, bool pad_first, bool closed,
                                              int64_t algorithm) {
  // Guard
  const LaunchScope scope("ball_query", points);

  // Contract, checks
  const NeighbourTensors in = with_monotone_offsets(
      scope, check_ball_query(points, queries, lengths, query_lengths, offsets, query_offsets, grid,
                              radius, k, algorithm));

  // Allocate
  Neighbours out{new_dense(points, rows_by(in.queries, k), ScalarType::Long),
                 new_dense(points, rows_by(in.queries, k), distance_type(in.points.dtype)),
                 new_dense(points, rows_of(in.queries), ScalarType::Long), pad_first};
  const std::tuple<Tensor, Tensor, Tensor> result{out.index, *out.counts, out.distance};

  // Empty early return
  if (in.queries.view.num_rows() == 0) return result;
  if (in.queries.view.count == 0) {
    fill_without_clouds(out);
    return result;
  }

  // Config
  const NeighbourQuery query{.k = k,
                             .select = nearest ? Select::kNearest : Select::kFirst,
                             .bound = squared_radius(radius, in.points.dtype),
                             .closed = closed};

  // Launch
  if (uses_grid(in)) {
    search_grid(scope, in, query, out);
  } else if (nearest) {
    search_brute(scope, in, query, out);
  } else {
    dispatch_bool(in.points.dtype == DType::kFloat64, [&]<bool Double>(Tag<Double>) {
      using T = std::conditional_t<Double, double, float>;
      const NeighbourOutput<T> view = output_view<T>(out, k);
      fill_unused_rows(scope, in, view);
      launch_brute<T>(scope, in, {view.index, view.distance, view.counts, nullptr, k, 0, pad_first},
                      limit_bits<T>(query.bound, closed));
    });
  }

  // Launch check
  check_launch("ball_query");
  return result;
}

Tensor radius_count(const Tensor& points,   // (B, N, D) or (P, D)
                    const Tensor& queries,  // (B, M, D) or (Q, D)
                    const std::optional<Tensor>& lengths,
                    const std::optional<Tensor>& query_lengths,
                    const std::optional<Tensor>& offsets,
                    const std::optional<Tensor>& query_offsets, const std::optional<Tensor>& grid,
                    double radius, bool closed, int64_t algorithm) {
  // Guard
  const LaunchScope scope("radius_count", points);

  // Contract, checks
  const NeighbourTensors in = with_monotone_offsets(
      scope, check_radius_search("radius_count", points, queries, lengths, query_lengths, offsets,
                                 query_offsets, grid, radius, algorithm));

  // Allocate
  Tensor counts = new_dense(points, rows_of(in.queries), ScalarType::Long);

  // Empty early return
  if (in.queries.view.num_rows() == 0) return counts;

  zero_unused(in, counts);
  if (in.queries.view.count == 0) return counts;

  // Launch
  dispatch_bool(in.points.dtype == DType::kFloat64, [&]<bool Double>(Tag<Double>) {
    using T = std::conditional_t<Double, double, float>;
    const BallOutput<T> out{
        nullptr, nullptr, static_cast<int64_t*>(counts.mutable_data_ptr()), nullptr, 0, 0, false};
    const auto limit = limit_bits<T>(squared_radius(radius, in.points.dtype), closed);
    uses_grid(in) ? launch_grid_radius<T>(scope, in, out, limit)
                  : launch_brute<T>(scope, in, out, limit);
  });

  // Launch check
  check_launch("radius_count");
  return counts;
}

// Puts every row in the order of its index: one stable sort of (row, index).
template <class T>
void sort_rows_by_index(const LaunchScope& scope, const NeighbourTensors& in, const int64_t* starts,
                        int64_t total, const Tensor& index, const Tensor& distance) {
  const auto bits = [](int64_t values) {
    int count = 0;
    while ((int64_t{1} << count) < values) ++count;
    return count;
  };
  const int64_t rows = in.queries.view.num_rows();
  const int index_bits = bits(in.points.view.capacity);
  const int64_t aligned = round_up(total, 32);
  const Tensor scratch = empty_bytes(index, aligned * (24 + int64_t{sizeof(T)}));
  char* base = static_cast<char*>(scratch.mutable_data_ptr());
  auto* keys = reinterpret_cast<uint64_t*>(base);
  auto* sorted_keys = keys + aligned;
  auto* places = reinterpret_cast<uint32_t*>(sorted_keys + aligned);
  auto* sorted_places = places + aligned;
  auto* unsorted = reinterpret_cast<T*>(sorted_places + aligned);
  const auto blocks = static_cast<unsigned>(ceil_div(total, kThreads));
  auto* index_data = static_cast<int64_t*>(index.mutable_data_ptr());
  auto* distance_data = static_cast<T*>(distance.mutable_data_ptr());
  radius_keys_kernel<<<blocks, kThreads, 0, scope.stream()>>>(starts, rows, index_data, total,
                                                              index_bits, keys, places);
  cudaMemcpyAsync(unsorted, distance_data, total * sizeof(T), cudaMemcpyDeviceToDevice,
                  scope.stream());
  sort_pairs(scope, keys, places, sorted_keys, sorted_places, total, index_bits + bits(rows));
  radius_gather_kernel<T><<<blocks, kThreads, 0, scope.stream()>>>(
      sorted_keys, sorted_places, unsorted, total, index_bits, index_data, distance_data);
}

std::tuple<Tensor, Tensor> radius_fill(
    const Tensor& points,   // (B, N, D) or (P, D)
    const Tensor& queries,  // (B, M, D) or (Q, D)
    const std::optional<Tensor>& lengths, const std::optional<Tensor>& query_lengths,
    const std::optional<Tensor>& offsets, const std::optional<Tensor>& query_offsets,
    const std::optional<Tensor>& grid, const Tensor& starts,  // (rows + 1,)
    double radius, bool closed, int64_t algorithm, int64_t total) {
  // Guard
  const LaunchScope scope("radius_fill", points);

  // Contract, checks
  const NeighbourTensors in = with_monotone_offsets(
      scope, check_radius_search("radius_fill", points, queries, lengths, query_lengths, offsets,
                                 query_offsets, grid, radius, algorithm));
  check_radius_fill(in, starts, total);

  // Allocate
  const Tensor index = new_dense(points, {total}, ScalarType::Long);
  const Tensor distance = new_dense(points, {total}, distance_type(in.points.dtype));

  // Empty early return
  if (total == 0) return {index, distance};

  // Launch
  const Tensor ends = dense(starts);
  const auto* first = static_cast<const int64_t*>(ends.const_data_ptr());
  dispatch_bool(in.points.dtype == DType::kFloat64, [&]<bool Double>(Tag<Double>) {
    using T = std::conditional_t<Double, double, float>;
    const BallOutput<T> out{static_cast<int64_t*>(index.mutable_data_ptr()),
                            static_cast<T*>(distance.mutable_data_ptr()),
                            nullptr,
                            first,
                            0,
                            total,
                            false};
    const auto limit = limit_bits<T>(squared_radius(radius, in.points.dtype), closed);
    if (uses_grid(in)) {
      launch_grid_radius<T>(scope, in, out, limit);
      sort_rows_by_index<T>(scope, in, first, total, index, distance);
    } else {
      launch_brute<T>(scope, in, out, limit);
    }
  });

  // Launch check
  check_launch("radius_fill");
  return {index, distance};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("ball_query", FUSEDOPS_BOX(&ball_query));
  m.impl("radius_count", FUSEDOPS_BOX(&radius_count));
  m.impl("radius_fill", FUSEDOPS_BOX(&radius_fill));
}

}  // namespace fusedops::cuda
