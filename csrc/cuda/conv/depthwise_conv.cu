// depthwise_conv on CUDA.
#include "csrc/common/checks/op_boundary.h"
#include "csrc/cuda/conv/depthwise_strip_host.h"

namespace fusedops::cuda {
namespace {

constexpr int64_t kMostAnyBlocks = 1 << 20;

// A convolution's kernel or its adjoint.
template <class T, int kInstance>
auto kernel_of(bool adjoint) {
  return adjoint ? &depthwise_kernel<T, kInstance / 16, kInstance % 16, true>
                 : &depthwise_kernel<T, kInstance / 16, kInstance % 16, false>;
}

}  // namespace

void launch_depthwise(const LaunchScope& scope, DType dtype, DepthwiseProblem p) {
  const DepthwiseShape& s = p.shape;
  const bool overlap = scope.facts().code_version >= 90;
  const std::initializer_list<const void*> data{p.x, p.weight, p.residual, p.y};
  if (p.residual == nullptr && takes_band(s, dtype, data)) return launch_band(scope, dtype, p);
  if (!p.adjoint && takes_columns(s, dtype, data)) return launch_columns(scope, dtype, p);
  const int instance = depthwise_instance(s, dtype, data);
  if (takes_strips(s, instance, data)) {
    return launch_strips(scope, dtype, instance, p);
  }
  if (instance == kAnyDepthwise) {
    const int64_t places = p.adjoint ? s.h * s.w : s.out_h * s.out_w;
    const int64_t blocks = ceil_div(s.n * places * s.channels, int64_t{kDepthwiseThreads});
    const dim3 grid(static_cast<unsigned>(blocks < kMostAnyBlocks ? blocks : kMostAnyBlocks));
    dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
      launch_kernel(depthwise_any_kernel<DeviceType<D>>, grid, dim3(kDepthwiseThreads), 0,
                    scope.stream(), overlap, p);
    });
    return;
  }
  const int64_t height = p.adjoint ? s.h + s.pad_h % s.stride_h : s.out_h;
  const int64_t width = p.adjoint ? s.w + s.pad_w % s.stride_w : s.out_w;
  p.grid = depthwise_grid(s.n, s.channels, ceil_div(height, int64_t{kDepthwiseTile}),
                          ceil_div(width, int64_t{kDepthwiseTile}),
                          int64_t{scope.facts().sm_count} * kDepthwiseBlocks);
  const dim3 grid(p.grid.row_blocks * static_cast<unsigned>(p.grid.chunks));
  with_half(dtype, [&]<class T>() {
    dispatch(DepthwiseInstances{}, instance, [&]<int kInstance>(Tag<kInstance>) {
      if constexpr (kInstance != kAnyDepthwise) {
        launch_kernel(kernel_of<T, kInstance>(p.adjoint), grid, dim3(kDepthwiseThreads), 0,
                      scope.stream(), overlap, p);
      }
    });
  });
}

namespace {

Tensor depthwise_conv(const Tensor& x_,                         // (N, H, W, C)
                      const Tensor& weight_,                    // (C, kh, kw)
                      const std::optional<Tensor>& conv_bias_,  // (C,)
                      const std::optional<Tensor>& mean,        // (C,)
                      const std::optional<Tensor>& var,         // (C,)
                      const std::optional<Tensor>& bn_weight,   // (C,)
                      const std::optional<Tensor>& bias,        // (C,)
                      const std::optional<Tensor>& residual_,   // (N, H', W', C)
                      int64_t stride_h, int64_t stride_w, int64_t pad_h, int64_t pad_w, double eps,
                      int64_t activation) {
  constexpr const char* kOp = "depthwise_conv";
  // Guard
  const LaunchScope scope(kOp, x_);

  // Checks
  const NormVectors norm{mean, var, bn_weight, bias};
  const DepthwiseShape shape = check_depthwise_conv(kOp, x_, weight_, conv_bias_, norm, residual_,
                                                    {stride_h, stride_w, pad_h, pad_w}, activation);

  // Allocate
  const Tensor y =
      new_dense(x_, std::vector<int64_t>{shape.n, shape.out_h, shape.out_w, shape.channels});

  // Empty early return
  if (y.numel() == 0) return y;

  // Config
  const Tensor x = dense(x_), weight = dense(weight_);
  const std::optional<Tensor> conv_bias = dense(conv_bias_), residual = dense(residual_);
  const DenseNorm vectors(norm);
  DepthwiseProblem problem{};
  problem.shape = shape;
  problem.x = x.numel() > 0 ? x.const_data_ptr() : nullptr;
  problem.weight = weight.const_data_ptr();
  problem.residual = pointer(residual);
  problem.y = y.mutable_data_ptr();
  problem.conv_bias = DenseNorm::vector(conv_bias);
  problem.norm = vectors.arguments(eps);
  problem.activation = static_cast<Activation>(activation);

  // Launch
  launch_depthwise(scope, check_floating(kOp, "x", x_), problem);

  // Launch check
  check_launch(kOp);
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("depthwise_conv", FUSEDOPS_BOX(&depthwise_conv));
}

}  // namespace fusedops::cuda
