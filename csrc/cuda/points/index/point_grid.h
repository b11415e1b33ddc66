// Host side of the index over point clouds, for every op that searches it.
#pragma once

#include "csrc/common/checks/cloud_check.h"
#include "csrc/common/checks/neighbours_check.h"
#include "csrc/common/host/launch.h"
#include "csrc/common/point_grid.h"

namespace fusedops::cuda {

template <class T>
struct PointGrid {
  Tensor bytes;
  GridView<T> view;
};

// The view of an index that exists; points has at least one row and one cloud.
template <class T>
PointGrid<T> view_point_grid(const Tensor& bytes, const Clouds& points) {
  PointGrid<T> grid{bytes, {}};
  grid_layout(grid_shape(points), static_cast<char*>(bytes.mutable_data_ptr()), &grid.view);
  return grid;
}

// Builds the index; T is float for half and single precision, double for float64.
template <class T>
PointGrid<T> build_point_grid(const LaunchScope& scope, const CloudTensors& points);

// Rows of the queries along the curve of the points' index, (rows,) of 4 bytes.
template <class T>
Tensor order_queries(const LaunchScope& scope, const CloudTensors& queries,
                     const PointGrid<T>& grid);

// Stable sort of (keys, values) by the lowest `bits` bits of the keys. The keys are destroyed.
void sort_pairs(const LaunchScope& scope, uint64_t* keys, const uint32_t* values,
                uint64_t* sorted_keys, uint32_t* sorted_values, int64_t count, int bits);

inline Tensor empty_bytes(const Tensor& like, int64_t bytes) {
  return new_dense(like, {bytes}, ScalarType::Byte);
}

}  // namespace fusedops::cuda
