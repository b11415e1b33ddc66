// Builds the index over point clouds (host side of point_grid.cuh), and the op that returns it.
#include <torch/csrc/stable/library.h>

#include <cub/device/device_radix_sort.cuh>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cuda/points/index/monotone_offsets.h"
#include "csrc/cuda/points/index/point_grid.cuh"
#include "csrc/cuda/points/index/point_grid.h"

namespace fusedops::cuda {
namespace {

constexpr int kExtentRows = 32;  // of a thread, in reduce_extents_kernel

int blocks_for(int64_t count, int64_t per_block) {
  return static_cast<int>(ceil_div(count, per_block));
}

// Keys and rows before the sort, both sorted after it, in one allocation.
struct SortBuffers {
  Tensor bytes;
  uint64_t* keys;
  uint64_t* sorted_keys;
  uint32_t* rows;
};

SortBuffers sort_buffers(const Tensor& like, int64_t rows) {
  const int64_t aligned = round_up(rows, 32);
  Tensor bytes = empty_bytes(like, aligned * 20);
  char* base = static_cast<char*>(bytes.mutable_data_ptr());
  return {bytes, reinterpret_cast<uint64_t*>(base), reinterpret_cast<uint64_t*>(base + 8 * aligned),
          reinterpret_cast<uint32_t*>(base + 16 * aligned)};
}

void sort_rows(const LaunchScope& scope, const CloudTensors& clouds, const GridFrame* frames,
               const GridShape& shape, uint32_t* order) {
  const int64_t rows = clouds.view.num_rows();
  const SortBuffers buffers = sort_buffers(clouds.points, rows);
  make_keys_kernel<<<blocks_for(rows, kGridThreads), kGridThreads, 0, scope.stream()>>>(
      clouds.view, clouds.dtype, frames, shape, buffers.keys, buffers.rows);
  sort_pairs(scope, buffers.keys, buffers.rows, buffers.sorted_keys, order, rows, shape.key_bits);
}

template <class T>
void fill_point_grid(const LaunchScope& scope, const CloudTensors& points, PointGrid<T>& grid) {
  const Clouds& clouds = points.view;
  const GridShape& shape = grid.view.shape;
  const cudaStream_t stream = scope.stream();
  const Tensor extents = empty_bytes(points.points, clouds.count * 48);
  auto* bits = static_cast<unsigned long long*>(extents.mutable_data_ptr());
  init_extents_kernel<<<blocks_for(clouds.count * 6, kGridThreads), kGridThreads, 0, stream>>>(
      bits, clouds.count);
  reduce_extents_kernel<kExtentRows>
      <<<blocks_for(shape.rows, kGridThreads * kExtentRows), kGridThreads, 0, stream>>>(
          clouds, points.dtype, bits);
  make_frames_kernel<<<blocks_for(clouds.count, kGridThreads), kGridThreads, 0, stream>>>(
      bits, grid.view.frames, clouds.count, shape.code_bits);
  sort_rows(scope, points, grid.view.frames, shape, grid.view.order);
  constexpr int kWarps = kGridThreads / 32;
  make_leaves_kernel<T><<<blocks_for(shape.groups(0), kWarps), kGridThreads, 0, stream>>>(
      clouds, points.dtype, grid.view);
  for (int level = 1; level < shape.levels; ++level) {
    make_boxes_kernel<T><<<blocks_for(shape.groups(level), kWarps), kGridThreads, 0, stream>>>(
        clouds, grid.view, level);
  }
}

}  // namespace

void sort_pairs(const LaunchScope& scope, uint64_t* keys, const uint32_t* values,
                uint64_t* sorted_keys, uint32_t* sorted_values, int64_t count, int bits) {
  size_t bytes = 0;
  const auto items = static_cast<int>(count);
  const auto sort = [&](void* storage) {
    const cudaError_t error =
        cub::DeviceRadixSort::SortPairs(storage, bytes, keys, sorted_keys, values, sorted_values,
                                        items, 0, bits > 0 ? bits : 1, scope.stream());
    FUSEDOPS_CHECK(error == cudaSuccess, "sort_pairs: CUDA error: ", cudaGetErrorString(error));
  };
  sort(nullptr);
  const Tensor storage = workspace(static_cast<int64_t>(bytes), scope);
  sort(storage.mutable_data_ptr());
}

template <class T>
PointGrid<T> build_point_grid(const LaunchScope& scope, const CloudTensors& points) {
  PointGrid<T> grid =
      view_point_grid<T>(empty_bytes(points.points, grid_bytes(points)), points.view);
  fill_point_grid(scope, points, grid);
  return grid;
}

template <class T>
Tensor order_queries(const LaunchScope& scope, const CloudTensors& queries,
                     const PointGrid<T>& grid) {
  Tensor order = empty_bytes(queries.points, queries.view.num_rows() * 4);
  sort_rows(scope, queries, grid.view.frames, grid.view.shape,
            static_cast<uint32_t*>(order.mutable_data_ptr()));
  return order;
}

template PointGrid<float> build_point_grid(const LaunchScope&, const CloudTensors&);
template PointGrid<double> build_point_grid(const LaunchScope&, const CloudTensors&);
template Tensor order_queries(const LaunchScope&, const CloudTensors&, const PointGrid<float>&);
template Tensor order_queries(const LaunchScope&, const CloudTensors&, const PointGrid<double>&);

namespace {

Tensor point_grid(const Tensor& points,                    // (B, N, D) or (P, D)
                  const std::optional<Tensor>& lengths,    // (B,)
                  const std::optional<Tensor>& offsets) {  // (B + 1,)
  // Guard
  const LaunchScope scope("point_grid", points);

  // Contract, checks
  const CloudTensors clouds =
      with_monotone_offsets(scope, check_grid_points("point_grid", points, lengths, offsets));

  // Allocate. Zeros: the gaps between clouds are never written, and results repeat bitwise.
  Tensor bytes = empty_bytes(points, grid_bytes(clouds));
  torch::stable::zero_(bytes);

  // Empty early return
  if (clouds.view.num_rows() == 0 || clouds.view.count == 0) return bytes;

  // Launch
  if (clouds.dtype == DType::kFloat64) {
    auto grid = view_point_grid<double>(bytes, clouds.view);
    fill_point_grid(scope, clouds, grid);
  } else {
    auto grid = view_point_grid<float>(bytes, clouds.view);
    fill_point_grid(scope, clouds, grid);
  }

  // Launch check
  check_launch("point_grid");
  return bytes;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) { m.impl("point_grid", FUSEDOPS_BOX(&point_grid)); }

}  // namespace fusedops::cuda
