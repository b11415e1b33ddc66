// Depthwise convolutions down columns of results: the grid and launches.
#include "csrc/cuda/conv/depthwise_columns.cuh"
#include "csrc/cuda/conv/depthwise_host.h"

namespace fusedops::cuda {
namespace {

// Rows of an image that the start of a thread, its weights above all, costs as much as.
constexpr int64_t kStartRows = 5;

// Columns are halved while that is expected to pay: more threads, which begin with rows that
// their neighbours read, too.
ColumnGrid column_grid(const DepthwiseShape& s, int sm_count) {
  ColumnGrid grid{};
  const int64_t eights = s.channels / 8;
  grid.chunks = static_cast<int>(ceil_div(eights, int64_t{kMostColumnEights}));
  grid.eights = static_cast<int>(ceil_div(eights, int64_t{grid.chunks}));
  grid.columns = kColumnThreads / grid.eights;
  int64_t least = INT64_MAX;
  for (int64_t rows = s.out_h;; rows = ceil_div(rows, int64_t{2})) {
    const int64_t segments = ceil_div(s.out_h, rows), items = s.n * segments * s.out_w;
    const int64_t blocks = ceil_div(items, int64_t{grid.columns}) * grid.chunks;
    const int64_t rounds = ceil_div(blocks, int64_t{sm_count} * kColumnBlocks);
    const int64_t cost = rounds * ((rows - 1) * 2 + 3 + kStartRows);
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

bool takes_columns(const DepthwiseShape& s, DType dtype, std::initializer_list<const void*> data) {
  const bool small = s.n * s.out_h * s.out_w <= int64_t{1} << 30;  // numbers of 32 bits
  return s.kh == 3 && s.stride_h == 2 && small && has_pairs(s, dtype, data) && has_eights(s, data);
}

void launch_columns(const LaunchScope& scope, DType dtype, const DepthwiseProblem& base) {
  const ColumnProblem p{base, column_grid(base.shape, scope.facts().sm_count)};
  const int64_t blocks = ceil_div(int64_t{p.grid.items}, int64_t{p.grid.columns}) * p.grid.chunks;
  with_half(dtype, [&]<class T>() {
    launch_kernel(depthwise_columns_kernel<T>, dim3(static_cast<unsigned>(blocks)),
                  dim3(kColumnThreads), 0, scope.stream(), scope.facts().code_version >= 90, p);
  });
}

}  // namespace fusedops::cuda
