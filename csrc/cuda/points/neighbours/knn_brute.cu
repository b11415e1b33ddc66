// Launches of knn_brute.cuh.
#include <algorithm>

#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/points/neighbours/knn_bounded.cuh"
#include "csrc/cuda/points/neighbours/knn_brute.cuh"
#include "csrc/cuda/points/neighbours/neighbour_output.cuh"

namespace fusedops::cuda {
namespace {

template <int Q, int U>
void launch_binned(const LaunchScope& scope, const NeighbourTensors& in,
                   const NeighbourOutput<float>& out, uint32_t limit) {
  const int dim = static_cast<int>(in.points.view.dim);
  const int64_t length = round_up(std::max<int64_t>(in.points.view.capacity, 1), 64);
  const int room = static_cast<int>(std::min<int64_t>(kBruteTileFloats / dim / 64 * 64, length));
  const int bytes = (dim * room + kBruteWarps * Q * dim) * 4;
  constexpr int kGroupBits = Q == 4 ? 5 : 3;
  static_assert(1 << kGroupBits == kBruteWarps * Q);
  const int64_t groups = num_row_groups(in.queries.view, kGroupBits);
  constexpr auto kernel = &knn_brute_kernel<Q, U>;
  allow_any_shared_memory<kernel>();
  kernel<<<static_cast<unsigned>(groups), kBruteWarps * 32, bytes, scope.stream()>>>(
      in.points.view, in.queries.view, in.points.dtype, out, limit, room, kGroupBits);
}

// Four queries a warp once that still gives every scheduler of the GPU a few warps.
void search_binned(const LaunchScope& scope, const NeighbourTensors& in,
                   const NeighbourOutput<float>& out, uint32_t limit) {
  const bool many = in.queries.view.num_rows() >= int64_t{scope.facts().sm_count} * 48;
  dispatch(Choices<1, 4>{}, many ? 4 : 1, [&]<int Q>(Tag<Q>) {
    dispatch(Choices<1, 2>{}, out.k > 12 ? 2 : 1,
             [&]<int U>(Tag<U>) { launch_binned<Q, U>(scope, in, out, limit); });
  });
}

// Three coordinates.
void search_bounded(const LaunchScope& scope, const NeighbourTensors& in,
                    const NeighbourOutput<float>& out, uint32_t limit) {
  const Clouds& queries = in.queries.view;
  const int64_t length = round_up(std::max<int64_t>(in.points.view.capacity, 1), kBins);
  const int room = static_cast<int>(std::min<int64_t>(length, kBoundedTile));
  const int bytes = room / kBins * kBinRowBytes;
  const bool many = queries.num_rows() >= int64_t{scope.facts().sm_count} * 48;
  dispatch(Choices<0, 2>{}, many ? 2 : 0, [&]<int Bits>(Tag<Bits>) {
    constexpr int kGroupBits = Bits + 4;
    static_assert(kBoundedWarps << Bits == 1 << kGroupBits);
    constexpr auto kernel = &knn_bounded_kernel<1 << Bits>;
    allow_any_shared_memory<kernel>();
    kernel<<<static_cast<unsigned>(num_row_groups(queries, kGroupBits)), kBoundedWarps * 32, bytes,
             scope.stream()>>>(in.points.view, queries, in.points.dtype, out, limit, room,
                               kGroupBits);
  });
}

template <DType D>
void search_any(const LaunchScope& scope, const NeighbourTensors& in, const NeighbourQuery& query,
                const Neighbours& neighbours) {
  using S = DeviceType<D>;
  using T = Compute<S>;
  const NeighbourOutput<T> out = output_view<T>(neighbours, query.k);
  const int capacity = collector_capacity(query.k);
  const int bits = collector_group_bits(scope, capacity * static_cast<int>(sizeof(KeyOf<T>)));
  const int bytes = capacity * static_cast<int>(sizeof(KeyOf<T>)) << bits;
  constexpr auto kernel = &knn_brute_any_kernel<S, T>;
  allow_any_shared_memory<kernel>();
  kernel<<<static_cast<unsigned>(num_row_groups(in.queries.view, bits)), 32 << bits, bytes,
           scope.stream()>>>(in.points.view, in.queries.view, out,
                             limit_bits<T>(query.bound, query.closed), query.norm == 1, capacity,
                             bits);
}

}  // namespace

void search_brute(const LaunchScope& scope, const NeighbourTensors& in, const NeighbourQuery& query,
                  const Neighbours& neighbours) {
  const bool is_double = in.points.dtype == DType::kFloat64;
  const int64_t dim = in.points.view.dim;
  if (is_double) {
    fill_unused_rows(scope, in, output_view<double>(neighbours, query.k));
  } else {
    fill_unused_rows(scope, in, output_view<float>(neighbours, query.k));
  }
  if (!is_double && query.norm == 2 && query.k <= kBruteMaxK && dim >= 1 && dim <= kBruteMaxDim) {
    const auto search = dim == 3 ? search_bounded : search_binned;
    return search(scope, in, output_view<float>(neighbours, query.k),
                  limit_bits<float>(query.bound, query.closed));
  }
  dispatch_dtype(in.points.dtype,
                 [&]<DType D>(Tag<D>) { search_any<D>(scope, in, query, neighbours); });
}

}  // namespace fusedops::cuda
