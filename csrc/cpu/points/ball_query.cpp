// ball_query, ball_query_scales, radius_count and radius_fill on the CPU.
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cpu/points/neighbours.h"

namespace fusedops::cpu {
namespace {

std::tuple<Tensor, Tensor, Tensor> ball_query(const Tensor& points,   // (B, N, D) or (P, D)
                                              const Tensor& queries,  // (B, M, D) or (Q, D)
                                              const std::optional<Tensor>& lengths,
                                              const std::optional<Tensor>& query_lengths,
                                              const std::optional<Tensor>& offsets,
                                              const std::optional<Tensor>& query_offsets,
                                              const std::optional<Tensor>& grid, double radius,
                                              int64_t k, bool nearest, bool pad_first, bool closed,
                                              int64_t algorithm) {
  // Contract, checks
  const NoGradGuard no_grad;
  const NeighbourTensors in = with_monotone_offsets(check_ball_query(
      points, queries, lengths, query_lengths, offsets, query_offsets, grid, radius, k, algorithm));

  // Allocate
  Tensor index = torch::stable::empty(rows_by(in.queries, k), ScalarType::Long);
  Tensor distance = torch::stable::empty(rows_by(in.queries, k), distance_type(in.points.dtype));
  Tensor counts = torch::stable::empty(rows_of(in.queries), ScalarType::Long);

  // Empty early return
  if (counts.numel() == 0) return {index, counts, distance};

  // Launch
  with_compute(in.points.dtype, [&]<class T>() {
    search<T>(SearchData<T>(in, 2),
              {.k = k,
               .select = nearest ? Select::kNearest : Select::kFirst,
               .bound = squared_radius(radius, in.points.dtype),
               .closed = closed},
              {static_cast<int64_t*>(index.mutable_data_ptr()),
               static_cast<T*>(distance.mutable_data_ptr()),
               static_cast<int64_t*>(counts.mutable_data_ptr()), pad_first});
  });
  return {index, counts, distance};
}

std::tuple<Tensor, Tensor> ball_query_scales(const Tensor& points,   // (B, N, D) or (P, D)
                                             const Tensor& queries,  // (B, M, D) or (Q, D)
                                             const std::optional<Tensor>& lengths,
                                             const std::optional<Tensor>& query_lengths,
                                             const std::optional<Tensor>& offsets,
                                             const std::optional<Tensor>& query_offsets,
                                             std::vector<double> radii, std::vector<int64_t> ks,
                                             bool pad_first, bool closed) {
  // Contract, checks
  const NoGradGuard no_grad;
  const NeighbourTensors in = with_monotone_offsets(check_ball_query_scales(
      points, queries, lengths, query_lengths, offsets, query_offsets, radii, ks));

  // Allocate
  Tensor index = torch::stable::empty({scales_total(in.queries, ks)}, ScalarType::Long);
  Tensor counts = torch::stable::empty(rows_of_scales(in.queries, ks), ScalarType::Long);

  // Empty early return
  if (counts.numel() == 0) return {index, counts};

  // Launch
  const int64_t rows = in.queries.view.num_rows();
  with_compute(in.points.dtype, [&]<class T>() {
    const SearchData<T> data(in, 2);  // the index, where one is built, serves all radii
    auto* index_at = static_cast<int64_t*>(index.mutable_data_ptr());
    auto* counts_at = static_cast<int64_t*>(counts.mutable_data_ptr());
    for (size_t s = 0; s < ks.size(); ++s) {
      search<T>(data,
                {.k = ks[s],
                 .select = Select::kFirst,
                 .bound = squared_radius(radii[s], in.points.dtype),
                 .closed = closed},
                {index_at, nullptr, counts_at, pad_first});
      index_at += rows * ks[s];
      counts_at += rows;
    }
  });
  return {index, counts};
}

// Calls found(row, d, index) for every neighbour within the radius.
template <class T, class Found>
void for_each_within(const SearchData<T>& data, double radius, bool closed, Found found) {
  const BestList<T> test({.closed = closed},
                         static_cast<T>(squared_radius(radius, data.in.points.dtype)));
  for_each_query(data.in, [&](int64_t b, int64_t row) {
    if (b < 0) return;
    const int64_t base = data.in.points.view.index_base(b);
    data.run(
        b, row, [&](T d, uint32_t) { return test.within(d); },
        [&](T d, uint32_t index) {
          if (test.within(d)) found(row, d, base + index);
        },
        [] { return false; });
  });
}

Tensor radius_count(const Tensor& points,   // (B, N, D) or (P, D)
                    const Tensor& queries,  // (B, M, D) or (Q, D)
                    const std::optional<Tensor>& lengths,
                    const std::optional<Tensor>& query_lengths,
                    const std::optional<Tensor>& offsets,
                    const std::optional<Tensor>& query_offsets, const std::optional<Tensor>& grid,
                    double radius, bool closed, int64_t algorithm) {
  // Contract, checks
  const NoGradGuard no_grad;
  const NeighbourTensors in = with_monotone_offsets(
      check_radius_search("radius_count", points, queries, lengths, query_lengths, offsets,
                          query_offsets, grid, radius, algorithm));

  // Allocate
  Tensor counts = torch::stable::empty(rows_of(in.queries), ScalarType::Long);
  torch::stable::zero_(counts);

  // Launch
  auto* count = static_cast<int64_t*>(counts.mutable_data_ptr());
  with_compute(in.points.dtype, [&]<class T>() {
    for_each_within<T>(SearchData<T>(in, 2), radius, closed,
                       [&](int64_t row, T, int64_t) { ++count[row]; });
  });
  return counts;
}

std::tuple<Tensor, Tensor> radius_fill(
    const Tensor& points,   // (B, N, D) or (P, D)
    const Tensor& queries,  // (B, M, D) or (Q, D)
    const std::optional<Tensor>& lengths, const std::optional<Tensor>& query_lengths,
    const std::optional<Tensor>& offsets, const std::optional<Tensor>& query_offsets,
    const std::optional<Tensor>& grid, const Tensor& starts,  // (rows + 1,)
    double radius, bool closed, int64_t algorithm, int64_t total) {
  // Contract, checks
  const NoGradGuard no_grad;
  const NeighbourTensors in = with_monotone_offsets(
      check_radius_search("radius_fill", points, queries, lengths, query_lengths, offsets,
                          query_offsets, grid, radius, algorithm));
  check_radius_fill(in, starts, total);
  const Tensor ends = dense(starts);
  const auto* first = static_cast<const int64_t*>(ends.const_data_ptr());

  // Allocate
  Tensor index = torch::stable::empty({total}, ScalarType::Long);
  Tensor distance = torch::stable::empty({total}, distance_type(in.points.dtype));

  // Launch
  auto* indices = static_cast<int64_t*>(index.mutable_data_ptr());
  const int64_t rows = in.queries.view.num_rows();
  with_compute(in.points.dtype, [&]<class T>() {
    auto* distances = static_cast<T*>(distance.mutable_data_ptr());
    std::vector<std::vector<std::pair<int64_t, T>>> found(rows);
    for_each_within<T>(SearchData<T>(in, 2), radius, closed,
                       [&](int64_t row, T d, int64_t i) { found[row].push_back({i, d}); });
    for (int64_t row = 0; row < rows; ++row) {
      std::sort(found[row].begin(), found[row].end());
      int64_t at = std::max<int64_t>(first[row], 0);
      const int64_t end = std::min(first[row + 1], total);
      for (size_t j = 0; j < found[row].size() && at < end; ++j, ++at) {
        std::tie(indices[at], distances[at]) = found[row][j];
      }
    }
  });
  return {index, distance};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("ball_query", FUSEDOPS_BOX(&ball_query));
  m.impl("ball_query_scales", FUSEDOPS_BOX(&ball_query_scales));
  m.impl("radius_count", FUSEDOPS_BOX(&radius_count));
  m.impl("radius_fill", FUSEDOPS_BOX(&radius_fill));
}

}  // namespace fusedops::cpu
