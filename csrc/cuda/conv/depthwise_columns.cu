// Depthwise convolutions down columns of results: the grid and launches.
#include "csrc/cuda/conv/depthwise_columns.cuh"
#include "csrc/cuda/conv/depthwise_columns_host.h"
#include "csrc/cuda/conv/depthwise_columns_weight.cuh"

namespace fusedops::cuda {
namespace {

// Rows of an image that the start of a thread, its weights above all, costs as much as.
constexpr int64_t kStartRows = 4;

// Columns are halved while that is expected to pay: more threads, which begin with rows that
// their neighbours read, too.
ColumnGrid column_grid(const DepthwiseShape& s, int64_t height, int64_t width, int results,
                       int sm_count) {
  ColumnGrid grid{};
  const int64_t groups = s.channels / column_vec(static_cast<int>(s.kh));
  grid.chunks = static_cast<int>(ceil_div(s.channels, int64_t{kMostColumnChannels}));
  grid.threads_x = static_cast<int>(ceil_div(groups, int64_t{grid.chunks}));
  grid.threads_y = kColumnThreads / grid.threads_x;
  grid.across = static_cast<int>(ceil_div(width, int64_t{results}));
  int64_t least = INT64_MAX;
  for (int64_t rows = height;; rows = ceil_div(rows, int64_t{2})) {
    const int64_t segments = ceil_div(height, rows), items = s.n * segments * grid.across;
    const int64_t row_blocks = ceil_div(items, int64_t{grid.threads_y});
    const int64_t rounds = ceil_div(row_blocks * grid.chunks, int64_t{sm_count} * kColumnBlocks);
    const int64_t cost = rounds * ((rows - 1) * s.stride_h + s.kh + kStartRows);
    if (cost < least) {
      least = cost;
      grid.rows = static_cast<int>(rows);
      grid.segments = static_cast<int>(segments);
      grid.items = static_cast<unsigned>(items);
      grid.row_blocks = static_cast<unsigned>(row_blocks);
    }
    if (rows == 1) return grid;
  }
}

template <class Problem>
void launch(void (*kernel)(Problem), const LaunchScope& scope, const Problem& p) {
  launch_kernel(kernel, dim3(p.grid.row_blocks * static_cast<unsigned>(p.grid.chunks)),
                dim3(kColumnThreads), 0, scope.stream(), scope.facts().code_version >= 90, p);
}

}  // namespace

void launch_columns(const LaunchScope& scope, DType dtype, int instance,
                    const DepthwiseProblem& base) {
  const DepthwiseShape& s = base.shape;
  const int64_t height = base.adjoint ? s.h : s.out_h, width = base.adjoint ? s.w : s.out_w;
  dispatch(ColumnInstances{}, instance, [&]<int kInstance>(Tag<kInstance>) {
    if constexpr (kInstance != kAnyDepthwise) {
      constexpr int kKernel = kInstance / 16, kStride = kInstance % 16;
      const ColumnProblem p{
          base, column_grid(s, height, width, column_results(kKernel), scope.facts().sm_count)};
      with_half(dtype, [&]<class T>() {
        if constexpr (kStride == 1) {
          if (base.adjoint) {
            return launch(&depthwise_columns_kernel<T, kKernel, kStride, true>, scope, p);
          }
        }
        launch(&depthwise_columns_kernel<T, kKernel, kStride, false>, scope, p);
      });
    }
  });
}

void launch_column_weight(const LaunchScope& scope, DType dtype, const DepthwiseWeightProblem& base,
                          const Tensor& dweight) {
  const DepthwiseShape& s = base.shape;
  const int sm_count = scope.facts().sm_count;
  ColumnWeightProblem p{base, column_grid(s, s.out_h, s.out_w, 1, sm_count)};
  ColumnGrid& grid = p.grid;
  // NOTE: one wave, since each block's sums are read again.
  const int64_t wave = ceil_div(int64_t{sm_count} * kColumnBlocks, int64_t{grid.chunks});
  const int64_t rounds = ceil_div(int64_t{grid.row_blocks}, wave);
  grid.row_blocks = static_cast<unsigned>(ceil_div(int64_t{grid.row_blocks}, rounds));
  const std::vector<int64_t> sizes{grid.row_blocks, s.taps(), s.channels};
  const Tensor partial = new_dense(dweight, sizes, ScalarType::Float);
  p.base.partial = partial.mutable_data_ptr();
  with_half(dtype, [&]<class T>() {
    launch(&depthwise_columns_weight_kernel<T, kColumnWeightKernel>, scope, p);
  });
  launch_join(scope, dtype,
              {partial.const_data_ptr(), dweight.mutable_data_ptr(), grid.row_blocks, s.channels,
               s.taps()});
}

}  // namespace fusedops::cuda
