// The index of common/point_grid.h on the CPU: building it, and walking it around a point.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "csrc/common/checks/neighbours_check.h"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/aten.h"
#include "csrc/cpu/host_types.h"

namespace fusedops::cpu {

// The clouds with offsets of which none is below the one before it: one that falls counts as the
// largest before it.
inline CloudTensors with_monotone_offsets(CloudTensors clouds) {
  if (!clouds.offsets) return clouds;
  const Tensor result = new_dense(*clouds.offsets, clouds.offsets->sizes());
  auto* offsets = static_cast<int64_t*>(result.mutable_data_ptr());
  int64_t largest = 0;
  for (int64_t i = 0; i <= clouds.view.count; ++i) {
    largest = std::max(largest, clamp(clouds.view.offsets[i], 0, clouds.view.capacity));
    offsets[i] = largest;
  }
  clouds.offsets = result;
  clouds.view.offsets = offsets;
  return clouds;
}

inline NeighbourTensors with_monotone_offsets(NeighbourTensors tensors) {
  tensors.points = with_monotone_offsets(tensors.points);
  tensors.queries = with_monotone_offsets(tensors.queries);
  return tensors;
}

// Rows of a tensor as T: x[row * dim + d].
template <class T>
std::vector<T> to_values(const Tensor& tensor, DType dtype) {
  std::vector<T> values(tensor.numel());
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    const auto* from = static_cast<const Storage<D>*>(tensor.const_data_ptr());
    torch::stable::parallel_for(0, tensor.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        values[i] = static_cast<T>(static_cast<Compute<D>>(from[i]));
      }
    });
  });
  return values;
}

// The cloud whose rows hold `row`; -1 for none.
inline int64_t cloud_of_row(const Clouds& clouds, int64_t row) {
  int64_t cloud = 0;
  if (clouds.offsets) {
    const int64_t* end = clouds.offsets + clouds.count;
    cloud = std::upper_bound(clouds.offsets, end, row) - clouds.offsets - 1;
    if (cloud < 0) return -1;
  } else {
    cloud = row / clouds.capacity;
  }
  const int64_t position = row - clouds.first_row(cloud);
  return position >= 0 && position < clouds.length(cloud) ? cloud : -1;
}

template <class T>
T index_as(uint32_t index) {
  if constexpr (sizeof(T) == 4) {
    return std::bit_cast<float>(index);
  } else {
    return std::bit_cast<double>(static_cast<uint64_t>(index));
  }
}
template <class T>
uint32_t index_of(T w) {
  if constexpr (sizeof(T) == 4) {
    return std::bit_cast<uint32_t>(w);
  } else {
    return static_cast<uint32_t>(std::bit_cast<uint64_t>(w));
  }
}

template <class T>
GridBox<T> empty_box() {
  constexpr T kInf = std::numeric_limits<T>::infinity();
  return {{kInf, kInf, kInf, index_as<T>(0xffffffffu)}, {-kInf, -kInf, -kInf, 0}};
}

// NaN coordinates leave the box as it is.
template <class T>
void extend(GridBox<T>& box, const GridPoint<T>& low, const GridPoint<T>& high) {
  box.low.x = low.x < box.low.x ? low.x : box.low.x;
  box.low.y = low.y < box.low.y ? low.y : box.low.y;
  box.low.z = low.z < box.low.z ? low.z : box.low.z;
  box.high.x = high.x > box.high.x ? high.x : box.high.x;
  box.high.y = high.y > box.high.y ? high.y : box.high.y;
  box.high.z = high.z > box.high.z ? high.z : box.high.z;
  box.low.w = index_as<T>(std::min(index_of(box.low.w), index_of(low.w)));
}

template <class T>
GridFrame make_frame(const T* rows, int64_t count, int64_t dim, int code_bits) {
  GridFrame frame{};
  double size = 0;
  for (int64_t d = 0; d < dim; ++d) {
    double low = std::numeric_limits<double>::infinity();
    double high = -low;
    for (int64_t i = 0; i < count; ++i) {
      const double x = rows[i * dim + d];
      if (!std::isfinite(x)) continue;
      low = std::min(low, x);
      high = std::max(high, x);
    }
    if (low > high) continue;
    frame.low[d] = low;
    size = std::max(size, high - low);
  }
  const double cells = static_cast<double>(1u << code_bits);
  frame.scale = size > 0 && std::isfinite(cells / size) ? cells / size : 0;
  return frame;
}

// Writes cloud b's part of the index.
template <class T>
void build_cloud(const GridView<T>& grid, const T* rows, int64_t dim, int64_t first_row, int64_t b,
                 int64_t length) {
  const T* cloud = rows + first_row * dim;
  const int bits = grid.shape.code_bits;
  const GridFrame frame = grid.frames[b] = make_frame(cloud, length, dim, bits);
  std::vector<std::pair<uint64_t, uint32_t>> order(length);
  for (int64_t i = 0; i < length; ++i) {
    uint32_t cell[3] = {0, 0, 0};
    for (int64_t d = 0; d < dim; ++d) {
      cell[d] = grid_cell(cloud[i * dim + d], frame.low[d], frame.scale, bits);
    }
    order[i] = {hilbert_code(cell[0], cell[1], cell[2], bits), static_cast<uint32_t>(i)};
  }
  std::sort(order.begin(), order.end());
  GridPoint<T>* points = grid.points + group_base(first_row, b, 0) * kGroup;
  for (int64_t i = 0; i < num_groups(length, 0) * kGroup; ++i) {
    T x[3] = {0, 0, 0};
    if (i < length) {
      grid.order[first_row + i] = static_cast<uint32_t>(first_row + order[i].second);
      for (int64_t d = 0; d < dim; ++d) x[d] = cloud[order[i].second * dim + d];
    }
    constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
    const bool usable = i < length && x[0] == x[0] && x[1] == x[1] && x[2] == x[2];
    points[i] = {usable ? x[0] : kNan, usable ? x[1] : kNan, usable ? x[2] : kNan,
                 index_as<T>(i < length ? order[i].second : 0xffffffffu)};
  }
  for (int level = 0; level <= top_level(length); ++level) {
    GridBox<T>* boxes = grid.boxes + grid.shape.first_box(level) + group_base(first_row, b, level);
    const GridBox<T>* inner = level == 0 ? nullptr
                                         : grid.boxes + grid.shape.first_box(level - 1) +
                                               group_base(first_row, b, level - 1);
    const int64_t below =
        level == 0 ? num_groups(length, 0) * kGroup : num_groups(length, level - 1);
    for (int64_t i = 0; i < num_groups(length, level); ++i) {
      boxes[i] = empty_box<T>();
      for (int64_t j = i * kGroup; j < std::min(below, (i + 1) * kGroup); ++j) {
        if (level == 0) {
          extend(boxes[i], points[j], points[j]);
        } else {
          extend(boxes[i], inner[j].low, inner[j].high);
        }
      }
    }
  }
}

template <class T>
void build_grid(const GridView<T>& grid, const CloudTensors& points) {
  const Clouds& clouds = points.view;
  const std::vector<T> rows = to_values<T>(points.points, points.dtype);
  torch::stable::parallel_for(0, clouds.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      build_cloud(grid, rows.data(), clouds.dim, clouds.first_row(b), b, clouds.length(b));
    }
  });
}

template <class T>
T gap(T low, T high, T x) {
  const T below = low - x;
  const T above = x - high;
  return std::max(T{0}, below > above ? below : above);  // in this order 0 for NaN = inf - inf
}

template <class T>
T measure(T x, T y, T z, bool manhattan) {
  return manhattan ? std::abs(x) + std::abs(y) + std::abs(z) : x * x + y * y + z * z;
}

// Calls visit(d, index) for every point of a cloud except in boxes that useful(d, least) refuses,
// nearest boxes first. d is a distance, `least` the smallest index in a box.
template <class T>
class GridWalk {
 public:
  GridWalk(const GridView<T>& grid, const Clouds& clouds, int64_t b, bool manhattan)
      : grid_(grid),
        first_row_(clouds.first_row(b)),
        cloud_(b),
        length_(clouds.length(b)),
        manhattan_(manhattan) {}

  template <class Useful, class Visit>
  void run(const T (&x)[3], Useful useful, Visit visit) const {
    if (length_ > 0 && x[0] == x[0] && x[1] == x[1] && x[2] == x[2]) {
      enter(x, top_level(length_), 0, useful, visit);
    }
  }

 private:
  template <class Useful, class Visit>
  void enter(const T (&x)[3], int level, int64_t first, Useful& useful, Visit& visit) const {
    const GridBox<T>* boxes =
        grid_.boxes + grid_.shape.first_box(level) + group_base(first_row_, cloud_, level);
    const int64_t end = std::min(first + kGroup, num_groups(length_, level));
    std::pair<T, int64_t> near[kGroup];
    int count = 0;
    for (int64_t i = first; i < end; ++i) {
      const GridBox<T>& box = boxes[i];
      const T d = measure(gap(box.low.x, box.high.x, x[0]), gap(box.low.y, box.high.y, x[1]),
                          gap(box.low.z, box.high.z, x[2]), manhattan_);
      if (useful(d, index_of(box.low.w))) near[count++] = {d, i};
    }
    std::sort(near, near + count);
    for (int i = 0; i < count; ++i) {
      const int64_t child = near[i].second;
      if (!useful(near[i].first, index_of(boxes[child].low.w))) continue;
      if (level > 0) {
        enter(x, level - 1, child * kGroup, useful, visit);
      } else {
        scan(x, child, visit);
      }
    }
  }

  template <class Visit>
  void scan(const T (&x)[3], int64_t leaf, Visit& visit) const {
    const GridPoint<T>* points = grid_.points + (group_base(first_row_, cloud_, 0) + leaf) * kGroup;
    T d[kGroup];
    for (int i = 0; i < kGroup; ++i) {
      d[i] = measure(x[0] - points[i].x, x[1] - points[i].y, x[2] - points[i].z, manhattan_);
    }
    for (int i = 0; i < kGroup; ++i) visit(d[i], index_of(points[i].w));
  }

  const GridView<T>& grid_;
  int64_t first_row_, cloud_, length_;
  bool manhattan_;
};

}  // namespace fusedops::cpu
