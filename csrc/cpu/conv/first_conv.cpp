// first_conv on the CPU: plain loops, sums in double.
#include <vector>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cpu/activation.h"
#include "csrc/cpu/conv/behind.h"
#include "csrc/cpu/pointwise.h"

namespace fusedops::cpu {
namespace {

// The sum of one result: x of its image, weight of its output.
template <typename C>
double window_sum(const DepthwiseShape& s, const C* x, const C* weight, int64_t oy, int64_t ox) {
  double sum = 0;
  for (int64_t tap = 0; tap < s.taps(); ++tap) {
    const int64_t iy = oy * s.stride_h - s.pad_h + tap / s.kw;
    const int64_t ix = ox * s.stride_w - s.pad_w + tap % s.kw;
    if (iy < 0 || iy >= s.h || ix < 0 || ix >= s.w) continue;
    for (int64_t c = 0; c < s.channels; ++c) {
      sum += double{x[(iy * s.w + ix) * s.channels + c]} * weight[tap * s.channels + c];
    }
  }
  return sum;
}

Tensor first_conv(const Tensor& x_,                        // (N, H, W, C)
                  const Tensor& weight_,                   // (O, kh, kw, C)
                  const std::optional<Tensor>& conv_bias,  // (O,)
                  const std::optional<Tensor>& mean,       // (O,)
                  const std::optional<Tensor>& var,        // (O,)
                  const std::optional<Tensor>& bn_weight,  // (O,)
                  const std::optional<Tensor>& bias,       // (O,)
                  int64_t stride_h, int64_t stride_w, int64_t pad_h, int64_t pad_w, double eps,
                  int64_t activation) {
  const NormVectors norm{mean, var, bn_weight, bias};
  const DepthwiseShape s = check_first_conv("first_conv", x_, weight_, conv_bias, norm,
                                            {stride_h, stride_w, pad_h, pad_w}, activation);
  const NoGradGuard no_grad;
  const ScalarType wide = wide_dtype(x_);
  const Tensor x = dense(to_dtype(x_, wide)), weight = dense(to_dtype(weight_, wide));
  const int64_t outputs = weight.size(0);
  const Tensor z = new_dense(x, std::vector<int64_t>{s.n, s.out_h, s.out_w, outputs});
  const auto form = [&]<typename C>(C) {
    const Behind<C> behind(conv_bias, norm, outputs, eps);
    const C* const from = static_cast<const C*>(x.const_data_ptr());
    const C* const taps = static_cast<const C*>(weight.const_data_ptr());
    C* const to = static_cast<C*>(z.mutable_data_ptr());
    torch::stable::parallel_for(0, z.numel(), kGrain / 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t output = i % outputs, place = i / outputs;
        const int64_t oy = place / s.out_w % s.out_h, n = place / s.out_w / s.out_h;
        to[i] = behind(window_sum(s, from + n * s.h * s.w * s.channels,
                                  taps + output * s.taps() * s.channels, oy, place % s.out_w),
                       output);
      }
    });
  };
  wide == ScalarType::Double ? form(double{}) : form(float{});
  activate(z, static_cast<Activation>(activation));
  return to_dtype(z, x_.scalar_type());
}

Tensor first_conv_weight(const Tensor& dy_,     // (N, H', W', O)
                         const Tensor& x_,      // (N, H, W, C)
                         const Tensor& weight,  // (O, kh, kw, C)
                         int64_t stride_h, int64_t stride_w, int64_t pad_h, int64_t pad_w) {
  const DepthwiseShape s = check_first_conv_gradient("first_conv_weight", dy_, x_, weight,
                                                     {stride_h, stride_w, pad_h, pad_w});
  const NoGradGuard no_grad;
  const Tensor dy = dense(to_dtype(dy_, ScalarType::Double));
  const Tensor x = dense(to_dtype(x_, ScalarType::Double));
  const auto sizes = weight.sizes();
  const Tensor dweight = new_dense(dy, sizes, ScalarType::Double);
  const double* const grad = static_cast<const double*>(dy.const_data_ptr());
  const double* const image = static_cast<const double*>(x.const_data_ptr());
  double* const to = static_cast<double*>(dweight.mutable_data_ptr());
  const int64_t outputs = weight.size(0), results = s.n * s.out_h * s.out_w;
  torch::stable::parallel_for(0, dweight.numel(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t c = i % s.channels, tap = i / s.channels % s.taps();
      const int64_t output = i / s.channels / s.taps();
      double sum = 0;
      for (int64_t r = 0; r < results; ++r) {
        const int64_t iy = r / s.out_w % s.out_h * s.stride_h - s.pad_h + tap / s.kw;
        const int64_t ix = r % s.out_w * s.stride_w - s.pad_w + tap % s.kw;
        if (iy < 0 || iy >= s.h || ix < 0 || ix >= s.w) continue;
        const int64_t n = r / s.out_w / s.out_h;
        sum += grad[r * outputs + output] * image[((n * s.h + iy) * s.w + ix) * s.channels + c];
      }
      to[i] = sum;
    }
  });
  return to_dtype(dweight, weight.scalar_type());
}

Tensor first_conv_image(const Tensor& dy_,      // (N, H', W', O)
                        const Tensor& x,        // (N, H, W, C)
                        const Tensor& weight_,  // (O, kh, kw, C)
                        int64_t stride_h, int64_t stride_w, int64_t pad_h, int64_t pad_w) {
  const DepthwiseShape s = check_first_conv_gradient("first_conv_image", dy_, x, weight_,
                                                     {stride_h, stride_w, pad_h, pad_w});
  const NoGradGuard no_grad;
  const Tensor dy = dense(to_dtype(dy_, ScalarType::Double));
  const Tensor weight = dense(to_dtype(weight_, ScalarType::Double));
  const auto sizes = x.sizes();
  const Tensor dx = new_dense(dy, sizes, ScalarType::Double);
  const double* const grad = static_cast<const double*>(dy.const_data_ptr());
  const double* const taps = static_cast<const double*>(weight.const_data_ptr());
  double* const to = static_cast<double*>(dx.mutable_data_ptr());
  const int64_t outputs = weight.size(0), step = s.taps() * s.channels;
  torch::stable::parallel_for(0, dx.numel(), kGrain / 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t c = i % s.channels, place = i / s.channels;
      const int64_t n = place / s.w / s.h;
      double sum = 0;
      for (int64_t tap = 0; tap < s.taps(); ++tap) {
        const int64_t y = place / s.w % s.h + s.pad_h - tap / s.kw;
        const int64_t left = place % s.w + s.pad_w - tap % s.kw;
        if (y < 0 || left < 0 || y % s.stride_h != 0 || left % s.stride_w != 0) continue;
        const int64_t oy = y / s.stride_h, ox = left / s.stride_w;
        if (oy >= s.out_h || ox >= s.out_w) continue;
        const double* const dy_at = grad + ((n * s.out_h + oy) * s.out_w + ox) * outputs;
        const double* const weight_at = taps + tap * s.channels + c;
        for (int64_t o = 0; o < outputs; ++o) sum += dy_at[o] * weight_at[o * step];
      }
      to[i] = sum;
    }
  });
  return to_dtype(dx, x.scalar_type());
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("first_conv", FUSEDOPS_BOX(&first_conv));
  m.impl("first_conv_image", FUSEDOPS_BOX(&first_conv_image));
  m.impl("first_conv_weight", FUSEDOPS_BOX(&first_conv_weight));
}

}  // namespace fusedops::cpu
