// depthwise_conv_backward on CUDA.
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cuda/conv/depthwise_strip_host.h"

namespace fusedops::cuda {
namespace {

// The sums of blocks, and what joins them to dweight. One wave: each block's sums are read again.
void launch_weight_gradient(const LaunchScope& scope, DType dtype, DepthwiseWeightProblem p,
                            const Tensor& dweight) {
  const DepthwiseShape& s = p.shape;
  const bool overlap = scope.facts().code_version >= 90;
  const int64_t blocks = int64_t{scope.facts().sm_count} * kDepthwiseBlocks;
  const int instance = depthwise_instance(s, dtype, {p.dy, p.x});
  if (takes_strips(s, instance, {p.dy, p.x})) {
    return launch_strip_weight(scope, dtype, instance, p, dweight);
  }
  const int64_t count = s.taps() * s.channels, col_blocks = ceil_div(s.channels, int64_t{32});
  if (instance == kAnyDepthwise) {
    const int64_t wanted = ceil_div(blocks, col_blocks * s.taps());
    const int64_t steps = ceil_div(s.n * s.out_h * s.out_w, int64_t{kRowsOfThreads});
    p.grid.row_blocks = static_cast<unsigned>(wanted < steps ? wanted : steps);
  } else {
    p.grid = depthwise_grid(s.n, s.channels,
                            ceil_div(s.out_h, int64_t{weight_tile_rows(static_cast<int>(s.kh))}),
                            ceil_div(s.out_w, int64_t{kDepthwiseTile}), blocks);
  }
  const ScalarType wide = wide_dtype(dweight);
  const Tensor partial =
      new_dense(dweight, std::vector<int64_t>{int64_t{p.grid.row_blocks} * count}, wide);
  p.partial = partial.mutable_data_ptr();
  const dim3 threads(kDepthwiseThreads);
  if (instance == kAnyDepthwise) {
    const dim3 grid(static_cast<unsigned>(p.grid.row_blocks * s.taps() * col_blocks));
    dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
      launch_kernel(depthwise_weight_any_kernel<DeviceType<D>>, grid, threads, 0, scope.stream(),
                    overlap, p);
    });
  } else {
    const dim3 grid(p.grid.row_blocks * static_cast<unsigned>(p.grid.chunks));
    with_half(dtype, [&]<class T>() {
      dispatch(DepthwiseInstances{}, instance, [&]<int kInstance>(Tag<kInstance>) {
        if constexpr (kInstance != kAnyDepthwise) {
          launch_kernel(depthwise_weight_kernel<T, kInstance / 16, kInstance % 16>, grid, threads,
                        0, scope.stream(), overlap, p);
        }
      });
    });
  }
  launch_join(scope, dtype,
              {p.partial, dweight.mutable_data_ptr(), p.grid.row_blocks, s.channels, s.taps()});
}

std::tuple<Tensor, Tensor> depthwise_conv_backward(const Tensor& dy_,      // (N, H', W', C)
                                                   const Tensor& x_,       // (N, H, W, C)
                                                   const Tensor& weight_,  // (C, kh, kw)
                                                   int64_t stride_h, int64_t stride_w,
                                                   int64_t pad_h, int64_t pad_w, bool need_dx,
                                                   bool need_dweight) {
  constexpr const char* kOp = "depthwise_conv_backward";
  // Guard
  const LaunchScope scope(kOp, x_);

  // Checks
  const DepthwiseShape shape =
      check_depthwise_conv_backward(kOp, dy_, x_, weight_, {stride_h, stride_w, pad_h, pad_w});
  const DType dtype = check_floating(kOp, "x", x_);

  // Allocate
  const auto like = [](const Tensor& tensor, bool needed) {
    return new_dense(tensor, needed ? shape_of(tensor) : std::vector<int64_t>{0});
  };
  Tensor dx = like(x_, need_dx), dweight = like(weight_, need_dweight);

  // Empty early return
  if (dy_.numel() == 0) return {torch::stable::zero_(dx), torch::stable::zero_(dweight)};

  // Config
  const Tensor dy = dense(dy_), x = dense(x_), weight = dense(weight_);

  // Launch
  if (need_dx && x.numel() > 0) {
    DepthwiseProblem problem{};
    problem.shape = shape;
    problem.x = dy.const_data_ptr();
    problem.weight = weight.const_data_ptr();
    problem.y = dx.mutable_data_ptr();
    problem.adjoint = true;
    launch_depthwise(scope, dtype, problem);
  }
  if (need_dweight) {
    DepthwiseWeightProblem problem{};
    problem.shape = shape;
    problem.dy = dy.const_data_ptr();
    problem.x = x.numel() > 0 ? x.const_data_ptr() : nullptr;
    launch_weight_gradient(scope, dtype, problem, dweight);
  }

  // Launch check
  check_launch(kOp);
  return {dx, dweight};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("depthwise_conv_backward", FUSEDOPS_BOX(&depthwise_conv_backward));
}

}  // namespace fusedops::cuda
