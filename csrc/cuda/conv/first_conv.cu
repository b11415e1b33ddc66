// first_conv on CUDA.
#include "csrc/common/checks/op_boundary.h"
#include "csrc/cuda/conv/first_host.h"

namespace fusedops::cuda {
namespace {

constexpr int64_t kMostAnyBlocks = 1 << 20;

void launch_first(const LaunchScope& scope, DType dtype, FirstProblem p) {
  const bool overlap = scope.facts().code_version >= 90;
  const dim3 threads(kFirstThreads);
  const int instance = first_instance(p, dtype);
  if (instance == kAnyFirst) {
    const int64_t blocks = ceil_div(p.n * p.out_h * p.out_w * p.outputs, int64_t{kFirstThreads});
    const dim3 grid(static_cast<unsigned>(blocks < kMostAnyBlocks ? blocks : kMostAnyBlocks));
    dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
      launch_kernel(first_any_kernel<DeviceType<D>>, grid, threads, 0, scope.stream(), overlap, p);
    });
    return;
  }
  const dim3 grid = first_grid(p, int64_t{scope.facts().sm_count} * kFirstBlocks);
  with_half(dtype, [&]<class T>() {
    dispatch(FirstInstances{}, instance, [&]<int kInstance>(Tag<kInstance>) {
      if constexpr (kInstance != kAnyFirst) {
        launch_kernel(first_kernel<T, kInstance>, grid, threads, 0, scope.stream(), overlap, p);
      }
    });
  });
}

Tensor first_conv(const Tensor& x_,                         // (N, H, W, C)
                  const Tensor& weight_,                    // (O, kh, kw, C)
                  const std::optional<Tensor>& conv_bias_,  // (O,)
                  const std::optional<Tensor>& mean,        // (O,)
                  const std::optional<Tensor>& var,         // (O,)
                  const std::optional<Tensor>& bn_weight,   // (O,)
                  const std::optional<Tensor>& bias,        // (O,)
                  int64_t stride_h, int64_t stride_w, int64_t pad_h, int64_t pad_w, double eps,
                  int64_t activation) {
  constexpr const char* kOp = "first_conv";
  // Guard
  const LaunchScope scope(kOp, x_);

  // Checks
  const NormVectors norm{mean, var, bn_weight, bias};
  const ConvGeometry geometry{stride_h, stride_w, pad_h, pad_w};
  const DepthwiseShape s =
      check_first_conv(kOp, x_, weight_, conv_bias_, norm, geometry, activation);

  // Allocate
  const Tensor y = new_dense(x_, std::vector<int64_t>{s.n, s.out_h, s.out_w, weight_.size(0)});

  // Empty early return
  if (y.numel() == 0) return y;

  // Config
  const Tensor x = dense(x_), weight = dense(weight_);
  const std::optional<Tensor> conv_bias = dense(conv_bias_);
  const DenseNorm vectors(norm);
  FirstProblem p = first_problem(s, weight.size(0));
  p.x = x.numel() > 0 ? x.const_data_ptr() : nullptr;
  p.weight = weight.numel() > 0 ? weight.const_data_ptr() : nullptr;
  p.y = y.mutable_data_ptr();
  p.conv_bias = DenseNorm::vector(conv_bias);
  p.norm = vectors.arguments(eps);
  p.activation = static_cast<Activation>(activation);

  // Launch
  launch_first(scope, check_floating(kOp, "x", x_), p);

  // Launch check
  check_launch(kOp);
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) { m.impl("first_conv", FUSEDOPS_BOX(&first_conv)); }

}  // namespace fusedops::cuda
