// Launches of grid_search.cuh.
#include <algorithm>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/points/neighbours/grid_search.cuh"
#include "csrc/cuda/points/neighbours/neighbour_output.cuh"

namespace fusedops::cuda {
namespace {

constexpr int64_t kOrderMaxRows = int64_t{1} << 31;  // of one sort
constexpr int kPacketMaxK = 32;
constexpr int64_t kPacketMinRows = 8192;  // below, packets leave most of the GPU idle

template <class T>
struct GridSearch {
  const LaunchScope& scope;
  const NeighbourTensors& in;
  const NeighbourQuery& query;
  const PointGrid<T>& grid;
  const uint32_t* order;
  NeighbourOutput<T> out;
  KeyBits<T> limit;
};

void launch_packets(const GridSearch<float>& search) {
  const Clouds& queries = search.in.queries.view;
  const int64_t packets = num_row_groups(queries, kGroupBits);
  const auto blocks = static_cast<unsigned>(ceil_div(packets, kPacketWarps));
  const int room = search.query.k <= 8 ? 8 : search.query.k <= 16 ? 16 : 32;
  dispatch(Choices<8, 16, 32>{}, room, [&]<int K>(Tag<K>) {
    dispatch(Choices<Select::kNearest, Select::kFirst>{}, search.query.select,
             [&]<Select S>(Tag<S>) {
               grid_packet_kernel<K, S><<<blocks, kPacketWarps * 32, 0, search.scope.stream()>>>(
                   search.in.points.view, search.grid.view, queries, search.in.points.dtype,
                   search.order, search.out, search.limit);
             });
  });
}

template <class T, Select S, bool Manhattan>
void launch_warps(const GridSearch<T>& search) {
  const Clouds& queries = search.in.queries.view;
  const int capacity = collector_capacity(search.query.k);
  const int bits =
      collector_group_bits(search.scope, capacity * static_cast<int>(sizeof(KeyOf<T>)));
  const int bytes = capacity * static_cast<int>(sizeof(KeyOf<T>)) << bits;
  constexpr auto kernel = &grid_warp_kernel<T, S, Manhattan>;
  allow_any_shared_memory<kernel>();
  kernel<<<static_cast<unsigned>(num_row_groups(queries, bits)), 32 << bits, bytes,
           search.scope.stream()>>>(search.in.points.view, search.grid.view, queries,
                                    search.in.points.dtype, search.order, search.out, search.limit,
                                    capacity, bits);
}

template <class T>
void search_typed(const LaunchScope& scope, const NeighbourTensors& in, const NeighbourQuery& query,
                  const Neighbours& neighbours) {
  const PointGrid<T> grid = in.grid ? view_point_grid<T>(*in.grid, in.points.view)
                                    : build_point_grid<T>(scope, in.points);
  const int64_t rows = in.queries.view.num_rows();
  const bool packets =
      sizeof(T) == 4 && query.norm == 2 && query.k <= kPacketMaxK && rows >= kPacketMinRows;
  GridSearch<T> search{scope,
                       in,
                       query,
                       grid,
                       nullptr,
                       output_view<T>(neighbours, query.k),
                       limit_bits<T>(query.bound, query.closed)};
  fill_unused_rows(scope, in, search.out);

  // Queries that are the points have an order already
  std::optional<Tensor> order;
  const bool self = in.queries.view.points == in.points.view.points &&
                    in.queries.view.capacity == in.points.view.capacity &&
                    in.queries.view.lengths == in.points.view.lengths &&
                    in.queries.view.offsets == in.points.view.offsets;
  if (self) {
    search.order = grid.view.order;
  } else if (rows >= kPacketMinRows && rows < kOrderMaxRows) {
    order = order_queries(scope, in.queries, grid);
    search.order = static_cast<const uint32_t*>(order->const_data_ptr());
  }
  if constexpr (sizeof(T) == 4) {
    if (packets) return launch_packets(search);
  }
  if (query.select == Select::kFirst) return launch_warps<T, Select::kFirst, false>(search);
  if (query.norm == 1) return launch_warps<T, Select::kNearest, true>(search);
  launch_warps<T, Select::kNearest, false>(search);
}

}  // namespace

void search_grid(const LaunchScope& scope, const NeighbourTensors& in, const NeighbourQuery& query,
                 const Neighbours& neighbours) {
  if (in.points.dtype == DType::kFloat64) {
    search_typed<double>(scope, in, query, neighbours);
  } else {
    search_typed<float>(scope, in, query, neighbours);
  }
}

// A model of both in microseconds, from times on H200: brute force (0.4 + 0.006 k) ps a pair for
// k <= 32 (0.95 unless in three coordinates) and (1 + 0.11 k) ps beyond, but no faster than one
// warp walks a cloud; the index 0.25 ms for the latency of its kernels, 0.3 ns a point, 2.2 ns a
// query for k <= 16 and 0.22 k ns beyond.
bool prefers_grid(const NeighbourTensors& in, int64_t k) {
  const Clouds& points = in.points.view;
  const Clouds& queries = in.queries.view;
  if (points.dim < 1 || points.dim > kMaxGridDim) return false;
  const auto rows = static_cast<double>(queries.num_rows());
  const auto all = static_cast<double>(points.num_rows());
  const double cloud = all / static_cast<double>(std::max<int64_t>(points.count, 1));
  const auto neighbours = static_cast<double>(k);
  const bool bounded = points.dim == 3 && in.points.dtype != DType::kFloat64;
  const double few = bounded ? 0.4e-6 + 0.006e-6 * neighbours : 0.95e-6;
  const double pair = k <= 32 ? few : 1e-6 + 0.11e-6 * neighbours;
  const double query = k <= 16 ? 2.2e-3 : 0.22e-3 * neighbours;
  const double brute = 6 + std::max(pair * rows * cloud, 3.6e-3 * cloud);
  return 250 + 0.3e-3 * all + query * rows < brute;
}

}  // namespace fusedops::cuda
