// image_conv and its gradient on CUDA: one kernel where there is one, else that of first_conv.
#include <torch/csrc/stable/library.h>

#include "csrc/common/checks/batch_norm_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/launch.h"
#include "csrc/common/int_math.h"
#include "csrc/cutlass/configs/alignment.h"
#include "csrc/cutlass/kernels/conv/sm90_image_conv.h"
#include "csrc/cutlass/ops/conv_vectors.h"

namespace fusedops {
namespace image_conv {
namespace {

RunFn g_kernels;  // NOTE: zero-initialised before any dynamic initialiser runs.

}  // namespace

RunFn find_kernels() { return g_kernels; }

bool register_kernels(RunFn run) {
  g_kernels = run;
  return true;
}

bool takes(const Call& c, int sm_count) {
  const bool is_half = c.dtype == DType::kFloat16 || c.dtype == DType::kBFloat16;
  constexpr int64_t kMost = int64_t{1} << 24;
  const auto tiles = [](int64_t extent) { return ceil_div(extent, int64_t{8}); };
  return is_half && c.channels > 0 && c.channels % kColumns == 0 && c.channels <= kMostChannels &&
         c.outputs % 8 == 0 && c.h < kMost && c.w < kMost && c.outputs <= kColumns * sm_count &&
         c.images < kMost && c.images * tiles(c.h) * tiles(c.w) < int64_t{1} << 30 &&
         aligned16(c.x) && aligned16(c.weight) && aligned16(c.y);
}

}  // namespace image_conv

namespace {

using image_conv::Call;

// Whether there is a kernel for it here, and it is launched.
bool runs(const char* op, const Call& call, const LaunchScope& scope) {
  const DeviceFacts& facts = scope.facts();
  const bool hopper = facts.capability / 10 == 9 && facts.code_version >= 90;
  const image_conv::RunFn run = hopper ? image_conv::find_kernels() : nullptr;
  if (run == nullptr || !image_conv::takes(call, facts.sm_count)) return false;
  const char* const failure = run(call, scope.context());
  FUSEDOPS_CHECK(failure == nullptr, op, ": the launch failed: ", failure);
  return true;
}

Call call_of(const Tensor& from, const Tensor& weight, const Tensor& to, DType dtype) {
  Call call{};
  call.dtype = dtype;
  call.images = from.size(0), call.h = from.size(1), call.w = from.size(2);
  call.channels = from.size(3), call.outputs = to.size(3);
  call.x = from.const_data_ptr();
  call.weight = weight.const_data_ptr();
  call.y = to.mutable_data_ptr();
  return call;
}

Tensor image_conv_forward(const Tensor& x_,                        // (N, H, W, C)
                          const Tensor& weight_,                   // (O, 3, 3, C)
                          const std::optional<Tensor>& conv_bias,  // (O,)
                          const std::optional<Tensor>& mean,       // (O,)
                          const std::optional<Tensor>& var,        // (O,)
                          const std::optional<Tensor>& bn_weight,  // (O,)
                          const std::optional<Tensor>& bias,       // (O,)
                          double eps, int64_t activation) {
  constexpr const char* kOp = "image_conv";
  // Guard
  const LaunchScope scope(kOp, x_);

  // Checks
  const NormVectors norm{mean, var, bn_weight, bias};
  const DepthwiseShape s = check_image_conv(kOp, x_, weight_, conv_bias, norm, activation);

  // Allocate
  const Tensor y = new_dense(x_, std::vector<int64_t>{s.n, s.out_h, s.out_w, weight_.size(0)});

  // Empty early return
  if (y.numel() == 0) return y;

  // Launch
  if (x_.numel() > 0) {
    const Tensor x = dense(x_), weight = dense(weight_);
    const ConvVectors vectors(conv_bias, norm);
    Call call = call_of(x, weight, y, check_floating(kOp, "x", x_));
    call.norm = vectors.norm(eps);
    call.activation = static_cast<Activation>(activation);
    if (runs(kOp, call, scope)) {
      check_launch(kOp);
      return y;
    }
  }
  const int64_t one = 1;
  return cpu::call("fusedops::first_conv", "", x_, weight_, conv_bias, mean, var, bn_weight, bias,
                   one, one, one, one, eps, activation);
}

Tensor image_conv_backward(const Tensor& dy_,      // (N, H, W, O)
                           const Tensor& x,        // (N, H, W, C)
                           const Tensor& weight_)  // (O, 3, 3, C)
{
  constexpr const char* kOp = "image_conv_backward";
  // Guard
  const LaunchScope scope(kOp, x);

  // Checks
  check_image_conv_gradient(kOp, dy_, x, weight_);

  // Allocate
  const auto sizes = x.sizes();
  const Tensor dx = new_dense(x, sizes);

  // Empty early return
  if (dx.numel() == 0) return dx;

  // Launch
  if (dy_.numel() > 0) {
    const Tensor dy = dense(dy_), weight = dense(weight_);
    Call call = call_of(dy, weight, dx, check_floating(kOp, "x", x));
    call.transposed = true;
    if (runs(kOp, call, scope)) {
      check_launch(kOp);
      return dx;
    }
  }
  const int64_t one = 1;
  return cpu::call("fusedops::first_conv_image", "", dy_, x, weight_, one, one, one, one);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("image_conv", FUSEDOPS_BOX(&image_conv_forward));
  m.impl("image_conv_backward", FUSEDOPS_BOX(&image_conv_backward));
}

}  // namespace fusedops
