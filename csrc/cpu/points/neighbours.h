// The neighbour searches on the CPU: through the index, or by comparing every pair.
#pragma once

#include <type_traits>

#include "csrc/cpu/points/point_grid.h"

namespace fusedops::cpu {

inline constexpr int64_t kQueryGrain = 64;  // queries that are worth a thread
inline constexpr int64_t kBruteBlock = 512;
inline constexpr int64_t kGridMinPoints = 128;

template <class T>
struct Candidate {
  T distance;
  uint32_t index;
};

// The k best candidates below a bound; the worst on top of a heap.
template <class T>
class BestList {
 public:
  BestList(const NeighbourQuery& query, T bound) : query_(query), bound_(bound) {
    heap_.reserve(query.k);
  }

  bool within(T d) const {
    // NOTE: written so that NaN is outside
    return d < bound_ || (d == bound_ && (query_.closed || std::isinf(bound_)));
  }
  bool before(const Candidate<T>& a, const Candidate<T>& b) const {
    if (query_.select == Select::kFirst) return a.index < b.index;
    return a.distance < b.distance || (a.distance == b.distance && a.index < b.index);
  }
  bool accepts(T d, uint32_t index) const {
    return within(d) && (std::ssize(heap_) < query_.k || before({d, index}, heap_.front()));
  }
  void add(T d, uint32_t index) {
    if (!accepts(d, index)) return;
    const auto order = [this](const auto& a, const auto& b) { return before(a, b); };
    if (std::ssize(heap_) == query_.k) {
      std::pop_heap(heap_.begin(), heap_.end(), order);
      heap_.pop_back();
    }
    heap_.push_back({d, index});
    std::push_heap(heap_.begin(), heap_.end(), order);
  }
  bool full_in_order() const {
    return query_.select == Select::kFirst && std::ssize(heap_) == query_.k;
  }
  const std::vector<Candidate<T>>& sorted() {
    std::sort(heap_.begin(), heap_.end(),
              [this](const auto& a, const auto& b) { return before(a, b); });
    return heap_;
  }
  void clear() { heap_.clear(); }

 private:
  NeighbourQuery query_;
  T bound_;
  std::vector<Candidate<T>> heap_;
};

// The points and queries of a call in T, with the index where it is used.
template <class T>
struct SearchData {
  const NeighbourTensors& in;
  bool manhattan;
  std::vector<T> points, queries;
  std::optional<Tensor> bytes;  // of the index
  GridView<T> grid;
  std::vector<std::vector<T>> columns;  // without an index: each cloud as [dim][length]

  SearchData(const NeighbourTensors& tensors, int64_t norm)
      : in(tensors),
        manhattan(norm == 1),
        points(to_values<T>(tensors.points.points, tensors.points.dtype)),
        queries(to_values<T>(tensors.queries.points, tensors.queries.dtype)) {
    if (uses_grid()) {
      const GridShape shape = grid_shape(in.points.view);
      bytes = in.grid ? *in.grid : torch::stable::empty({grid_bytes(in.points)}, ScalarType::Byte);
      grid_layout(shape, static_cast<char*>(bytes->mutable_data_ptr()), &grid);
      if (!in.grid) build_grid(grid, in.points);
    } else {
      transpose();
    }
  }

  bool uses_grid() const {
    const Clouds& clouds = in.points.view;
    if (clouds.num_rows() == 0) return false;
    if (in.grid || in.algorithm == NeighbourAlgorithm::kGrid) return true;
    return in.algorithm == NeighbourAlgorithm::kAuto && clouds.dim >= 1 &&
           clouds.dim <= kMaxGridDim && clouds.num_rows() >= kGridMinPoints * clouds.count;
  }

  // Calls visit(d, index) for the points of cloud b that useful() does not exclude, by index
  // without an index; stop() ends such a pass early.
  template <class Useful, class Visit, class Stop>
  void run(int64_t b, int64_t row, Useful useful, Visit visit, Stop stop) const {
    const int64_t dim = in.points.view.dim;
    const T* query = queries.data() + row * dim;
    if (bytes) {
      T x[3] = {0, 0, 0};
      std::copy(query, query + dim, x);
      GridWalk<T>(grid, in.points.view, b, manhattan).run(x, useful, visit);
      return;
    }
    const std::vector<T>& cloud = columns[b];
    const int64_t length = in.points.view.length(b);
    T d[kBruteBlock];
    for (int64_t start = 0; start < length && !stop(); start += kBruteBlock) {
      const int64_t count = std::min(kBruteBlock, length - start);
      std::fill(d, d + count, T{0});
      for (int64_t c = 0; c < dim; ++c) {
        const T* column = cloud.data() + c * length + start;
        for (int64_t i = 0; i < count; ++i) {
          const T delta = query[c] - column[i];
          d[i] += manhattan ? std::abs(delta) : delta * delta;
        }
      }
      for (int64_t i = 0; i < count; ++i) visit(d[i], static_cast<uint32_t>(start + i));
    }
  }

 private:
  void transpose() {
    const Clouds& clouds = in.points.view;
    columns.resize(clouds.count);
    for (int64_t b = 0; b < clouds.count; ++b) {
      const int64_t length = clouds.length(b);
      const T* rows = points.data() + clouds.first_row(b) * clouds.dim;
      columns[b].resize(length * clouds.dim);
      for (int64_t i = 0; i < length; ++i) {
        for (int64_t d = 0; d < clouds.dim; ++d)
          columns[b][d * length + i] = rows[i * clouds.dim + d];
      }
    }
  }
};

// Calls each(b, row) for every query row, b = -1 for rows of no cloud, on torch's threads.
template <class Each>
void for_each_query(const NeighbourTensors& in, Each each) {
  const Clouds& queries = in.queries.view;
  torch::stable::parallel_for(0, queries.num_rows(), kQueryGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) each(cloud_of_row(queries, row), row);
  });
}

template <class T>
struct RowOutput {
  int64_t* index;
  T* distance;      // or null
  int64_t* counts;  // or null
  bool pad_first;
};

// Fills every row with its k best neighbours.
template <class T>
void search(const SearchData<T>& data, const NeighbourQuery& query, const RowOutput<T>& out) {
  for_each_query(data.in, [&](int64_t b, int64_t row) {
    BestList<T> best(query, static_cast<T>(query.bound));
    if (b >= 0) {
      data.run(
          b, row, [&](T d, uint32_t least) { return best.accepts(d, least); },
          [&](T d, uint32_t index) { best.add(d, index); }, [&] { return best.full_in_order(); });
    }
    const auto& found = best.sorted();
    const int64_t base = b >= 0 ? data.in.points.view.index_base(b) : 0;
    for (int64_t j = 0; j < query.k; ++j) {
      const bool repeat = out.pad_first && !found.empty();
      const int64_t at = j < std::ssize(found) ? j : repeat ? 0 : -1;
      out.index[row * query.k + j] = at < 0 ? -1 : base + found[at].index;
      if (!out.distance) continue;
      out.distance[row * query.k + j] =
          at < 0 ? std::numeric_limits<T>::infinity() : found[at].distance;
    }
    if (out.counts) out.counts[row] = std::ssize(found);
  });
}

// fn.operator()<float>() or <double>().
template <class Fn>
void with_compute(DType dtype, Fn fn) {
  dtype == DType::kFloat64 ? fn.template operator()<double>() : fn.template operator()<float>();
}

}  // namespace fusedops::cpu
