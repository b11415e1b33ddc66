// Furthest point sampling on the CPU: points in spatial buckets, each with its box and its furthest
// point. A sample visits only the buckets that it can bring closer (Han et al., "QuickFPS", TCAD
// 2023, without the tree). Bounds and distances are rounded by the same operations, which are
// monotone: a skipped bucket could not have changed, and the result is that of the plain loop.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "csrc/common/checks/fps_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/aten.h"
#include "csrc/cpu/pointwise.h"

namespace fusedops::cpu {
namespace {

using fps::Problem;
using fps::Task;

constexpr int64_t kBucketPoints = 64;

// Marks in place of a distance: below every distance, so such points come last.
constexpr int kNanPoint = -1;
constexpr int kTaken = -2;

template <class T>
struct Bucket {
  int64_t begin, end;
  T furthest;     // largest distance, or a mark
  int64_t index;  // its position in the cloud, the lowest of them
};

template <class T>
class Sampler {
 public:
  // `rows` (length, dim) holds the cloud.
  Sampler(std::vector<T> rows, int64_t length, int64_t dim)
      : rows_(std::move(rows)), length_(length), dim_(dim), order_(length), distance_(length) {
    std::iota(order_.begin(), order_.end(), int64_t{0});
    split(0, length);
    lay_out();
  }

  // Writes `count` positions, `base` added.
  void run(int64_t start, int64_t count, int64_t base, int64_t* out) {
    int64_t chosen = start;
    for (int64_t s = 0; s < count; ++s) {
      out[s] = base + chosen;
      if (s + 1 == count) break;
      take(chosen);
      const Bucket<T>* best = &buckets_[0];
      for (const Bucket<T>& bucket : buckets_) {
        if (bucket.furthest > best->furthest ||
            (bucket.furthest == best->furthest && bucket.index < best->index)) {
          best = &bucket;
        }
      }
      chosen = best->index;
    }
  }

 private:
  const T* row(int64_t position) const { return rows_.data() + position * dim_; }

  // Median splits along the widest dimension, down to buckets.
  void split(int64_t begin, int64_t end) {
    if (begin == end) return;
    const auto [axis, spread] = widest(begin, end);
    if (end - begin <= kBucketPoints || !(spread > 0)) {
      for (int64_t i = begin; i < end; i += kBucketPoints) {
        buckets_.push_back({i, std::min(i + kBucketPoints, end), 0, 0});
      }
      return;
    }
    const int64_t middle = begin + (end - begin) / 2;
    const auto key = [this, axis = axis](int64_t i) {
      const T x = row(i)[axis];
      return std::isnan(x) ? std::numeric_limits<T>::infinity() : x;
    };
    std::nth_element(order_.begin() + begin, order_.begin() + middle, order_.begin() + end,
                     [&](int64_t a, int64_t b) { return key(a) < key(b); });
    split(begin, middle);
    split(middle, end);
  }

  std::pair<int64_t, T> widest(int64_t begin, int64_t end) const {
    std::pair<int64_t, T> result{0, T(0)};
    for (int64_t d = 0; d < dim_; ++d) {
      T low = std::numeric_limits<T>::infinity(), high = -low;
      for (int64_t i = begin; i < end; ++i) {
        const T x = row(order_[i])[d];
        low = x < low ? x : low;
        high = x > high ? x : high;
      }
      if (high - low > result.second) result = {d, high - low};
    }
    return result;
  }

  // Coordinates by dimension in bucket order, boxes, first distances.
  void lay_out() {
    columns_.resize(length_ * dim_);
    bucket_of_.resize(length_);
    low_.assign(buckets_.size() * dim_, std::numeric_limits<T>::infinity());
    high_.assign(buckets_.size() * dim_, -std::numeric_limits<T>::infinity());
    for (size_t b = 0; b < buckets_.size(); ++b) {
      Bucket<T>& bucket = buckets_[b];
      // Indices ascend within a bucket: of equal distances the first is the lowest
      std::sort(order_.begin() + bucket.begin, order_.begin() + bucket.end);
      for (int64_t i = bucket.begin; i < bucket.end; ++i) {
        const T* point = row(order_[i]);
        bucket_of_[order_[i]] = static_cast<int64_t>(b);
        const bool nan = std::any_of(point, point + dim_, [](T x) { return std::isnan(x); });
        distance_[i] = nan ? T(kNanPoint) : std::numeric_limits<T>::infinity();
        for (int64_t d = 0; d < dim_; ++d) {
          columns_[d * length_ + i] = point[d];
          T &low = low_[d * buckets_.size() + b], &high = high_[d * buckets_.size() + b];
          low = std::min(low, nan ? low : point[d]);
          high = std::max(high, nan ? high : point[d]);
        }
      }
      refresh(bucket);
    }
    bound_.resize(buckets_.size());
  }

  void take(int64_t chosen) {
    Bucket<T>& own = buckets_[bucket_of_[chosen]];
    const auto at = std::lower_bound(order_.begin() + own.begin, order_.begin() + own.end, chosen);
    distance_[at - order_.begin()] = T(kTaken);
    const T* point = row(chosen);
    std::fill(bound_.begin(), bound_.end(), T(0));
    const size_t count = buckets_.size();
    for (int64_t d = 0; d < dim_; ++d) {
      const T c = point[d], *low = low_.data() + d * count, *high = high_.data() + d * count;
      for (size_t b = 0; b < count; ++b) {
        const T under = low[b] - c, over = c - high[b];
        const T gap = std::max(std::max(under, over), T(0));
        bound_[b] += gap * gap;
      }
    }
    for (size_t b = 0; b < count; ++b) {
      if (!(bound_[b] >= buckets_[b].furthest)) visit(buckets_[b], point);
    }
    refresh(own);
  }

  void visit(Bucket<T>& bucket, const T* point) {
    T sum[kBucketPoints] = {};
    const int64_t count = bucket.end - bucket.begin;
    for (int64_t d = 0; d < dim_; ++d) {
      const T c = point[d], *column = columns_.data() + d * length_ + bucket.begin;
      for (int64_t i = 0; i < count; ++i) {
        const T difference = column[i] - c;
        sum[i] += difference * difference;
      }
    }
    T* distance = distance_.data() + bucket.begin;
    for (int64_t i = 0; i < count; ++i) {
      distance[i] = sum[i] < distance[i] ? sum[i] : distance[i];  // not for a NaN or a mark
    }
    refresh(bucket);
  }

  void refresh(Bucket<T>& bucket) {
    const T* distance = distance_.data();
    bucket.furthest = *std::max_element(distance + bucket.begin, distance + bucket.end);
    const T* at = std::find(distance + bucket.begin, distance + bucket.end, bucket.furthest);
    bucket.index = order_[at - distance];
  }

  std::vector<T> rows_;
  int64_t length_, dim_;
  std::vector<int64_t> order_;  // positions in the cloud, by bucket
  std::vector<T> distance_;     // to the samples, in bucket order
  std::vector<T> columns_;      // [dim][length], in bucket order
  std::vector<T> low_, high_;   // [dim][buckets]
  std::vector<T> bound_;        // [buckets]
  std::vector<Bucket<T>> buckets_;
  std::vector<int64_t> bucket_of_;  // by position in the cloud
};

template <DType D>
void sample_cloud(const Problem& problem, const Task& task) {
  const int64_t dim = problem.clouds.dim, length = task.length;
  if (task.count > 0) {
    const auto* points = static_cast<const Storage<D>*>(problem.clouds.points);
    const auto* first = points + task.first_row * dim;
    std::vector<Compute<D>> rows(first, first + length * dim);
    Sampler<Compute<D>>(std::move(rows), length, dim)
        .run(task.start, task.count, task.index_base, task.out);
  }
  std::fill(task.out + task.count, task.out + task.out_size, int64_t{-1});
}

Tensor farthest_point_sample(const Tensor& points,                      // (B, N, D) or (P, D)
                             const std::optional<Tensor>& lengths,      // (B,)
                             const std::optional<Tensor>& offsets,      // (B + 1,)
                             const std::optional<Tensor>& start,        // (B,)
                             const std::optional<Tensor>& out_offsets,  // (B + 1,)
                             int64_t n, int64_t max_length) {
  // Checks
  const NoGradGuard no_grad;
  fps::Arguments arguments =
      fps::check_arguments(points, lengths, offsets, start, out_offsets, n, max_length);
  Problem& problem = arguments.problem;

  // Allocate
  Tensor out = out_offsets ? torch::stable::empty({n}, ScalarType::Long)
                           : torch::stable::empty({problem.clouds.count, n}, ScalarType::Long);
  problem.out = static_cast<int64_t*>(out.mutable_data_ptr());
  std::fill(problem.out, problem.out + out.numel(), int64_t{-1});  // what no cloud's part covers

  // Launch
  dispatch_dtype(problem.dtype, [&]<DType D>(Tag<D>) {
    torch::stable::parallel_for(0, problem.clouds.count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) sample_cloud<D>(problem, fps::task_of(problem, b));
    });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("farthest_point_sample", FUSEDOPS_BOX(&farthest_point_sample));
}

}  // namespace fusedops::cpu
