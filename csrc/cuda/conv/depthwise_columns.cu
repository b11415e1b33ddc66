// Depthwise convolutions down columns of results: the grid and launches.
#include "csrc/cuda/conv/depthwise_columns.cuh"
#include "csrc/cuda/conv/depthwise_host.h"

namespace fusedops::cuda {
namespace {

// Rows of an image that the start of a thread, its weights above all, costs as much as.
constexpr int64_t kStartRows = 5;

// Columns are halved while that is expected to pay: more threads, which begin with rows that
// their neighbours read, too.
ColumnGrid column_grid(const DepthwiseShape& s, int64_t height, int64_t width, int sm_count) {
  ColumnGrid grid{};
  const int64_t vec = column_vec(static_cast<int>(s.kh)), groups = s.channels / vec;
  grid.chunks = static_cast<int>(ceil_div(s.channels, int64_t{kMostColumnChannels}));
  grid.threads_x = static_cast<int>(ceil_div(groups, int64_t{grid.chunks}));
  grid.columns = kColumnThreads / grid.threads_x;
  int64_t least = INT64_MAX;
  for (int64_t rows = height;; rows = ceil_div(rows, int64_t{2})) {
    const int64_t segments = ceil_div(height, rows), items = s.n * segments * width;
    const int64_t blocks = ceil_div(items, int64_t{grid.columns}) * grid.chunks;
    const int64_t rounds = ceil_div(blocks, int64_t{sm_count} * kColumnBlocks);
    const int64_t cost = rounds * ((rows - 1) * s.stride_h + s.kh + kStartRows);
    if (cost < least) {
      least = cost;
      grid.rows = static_cast<int>(rows);
      grid.segments = static_cast<int>(segments);
      grid.items = static_cast<unsigned>(items);
    }
    if (rows == 1) return grid;
  }
}

}  // namespace

void launch_columns(const LaunchScope& scope, DType dtype, int instance,
                    const DepthwiseProblem& p) {
  const DepthwiseShape& s = p.shape;
  const ColumnGrid grid =
      column_grid(s, p.adjoint ? s.h : s.out_h, p.adjoint ? s.w : s.out_w, scope.facts().sm_count);
  const int64_t blocks = ceil_div(int64_t{grid.items}, int64_t{grid.columns}) * grid.chunks;
  with_half(dtype, [&]<class T>() {
    dispatch(DepthwiseInstances{}, instance, [&]<int kInstance>(Tag<kInstance>) {
      if constexpr (kInstance != kAnyDepthwise) {
        constexpr int kKernel = kInstance / 16, kStride = kInstance % 16;
        auto kernel = &depthwise_columns_kernel<T, kKernel, kStride, false>;
        if constexpr (kStride == 1) {
          if (p.adjoint) kernel = &depthwise_columns_kernel<T, kKernel, kStride, true>;
        }
        launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kColumnThreads), 0,
                      scope.stream(), scope.facts().code_version >= 90, ColumnProblem{p, grid});
      }
    });
  });
}

}  // namespace fusedops::cuda
