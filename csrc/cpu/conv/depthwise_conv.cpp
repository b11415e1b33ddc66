// depthwise_conv and its backward on the CPU: plain loops, sums in double.
#include <algorithm>
#include <tuple>
#include <vector>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cpu/activation.h"
#include "csrc/cpu/conv/behind.h"
#include "csrc/cpu/pointwise.h"

namespace fusedops::cpu {
namespace {

// Calls fn(offset of y, offset of x, tap, channel) for every product of the images [begin, end).
template <typename Fn>
void for_each_product(const DepthwiseShape& s, int64_t begin, int64_t end, Fn fn) {
  for (int64_t n = begin; n < end; ++n) {
    for (int64_t oy = 0; oy < s.out_h; ++oy) {
      for (int64_t ox = 0; ox < s.out_w; ++ox) {
        const int64_t to = ((n * s.out_h + oy) * s.out_w + ox) * s.channels;
        for (int64_t tap = 0; tap < s.taps(); ++tap) {
          const int64_t iy = oy * s.stride_h - s.pad_h + tap / s.kw;
          const int64_t ix = ox * s.stride_w - s.pad_w + tap % s.kw;
          if (iy < 0 || iy >= s.h || ix < 0 || ix >= s.w) continue;
          const int64_t from = ((n * s.h + iy) * s.w + ix) * s.channels;
          for (int64_t c = 0; c < s.channels; ++c) fn(to + c, from + c, tap, c);
        }
      }
    }
  }
}

Tensor depthwise_conv(const Tensor& x_,                        // (N, H, W, C)
                      const Tensor& weight_,                   // (C, kh, kw)
                      const std::optional<Tensor>& conv_bias,  // (C,)
                      const std::optional<Tensor>& mean,       // (C,)
                      const std::optional<Tensor>& var,        // (C,)
                      const std::optional<Tensor>& bn_weight,  // (C,)
                      const std::optional<Tensor>& bias,       // (C,)
                      const std::optional<Tensor>& residual_,  // (N, H', W', C)
                      int64_t stride_h, int64_t stride_w, int64_t pad_h, int64_t pad_w, double eps,
                      int64_t activation) {
  const NormVectors norm{mean, var, bn_weight, bias};
  const DepthwiseShape s =
      check_depthwise_conv("depthwise_conv", x_, weight_, conv_bias, norm, residual_,
                           {stride_h, stride_w, pad_h, pad_w}, activation);
  const NoGradGuard no_grad;
  const ScalarType wide = wide_dtype(x_);
  const Tensor x = dense(to_dtype(x_, wide)), weight = dense(to_dtype(weight_, wide));
  const Tensor z = new_dense(x, std::vector<int64_t>{s.n, s.out_h, s.out_w, s.channels});
  std::optional<Tensor> residual;
  if (residual_) residual = dense(to_dtype(*residual_, wide));
  const auto form = [&]<typename C>(C) {
    const Behind<C> behind(conv_bias, norm, s.channels, eps);
    const C* const from = static_cast<const C*>(x.const_data_ptr());
    const C* const taps = static_cast<const C*>(weight.const_data_ptr());
    const C* const added = residual ? static_cast<const C*>(residual->const_data_ptr()) : nullptr;
    C* const to = static_cast<C*>(z.mutable_data_ptr());
    const int64_t image = s.out_h * s.out_w * s.channels;
    torch::stable::parallel_for(0, s.n, 1, [&](int64_t begin, int64_t end) {
      std::vector<double> sums((end - begin) * image);
      for_each_product(s, begin, end, [&](int64_t i, int64_t j, int64_t tap, int64_t c) {
        sums[i - begin * image] += double{from[j]} * taps[c * s.taps() + tap];
      });
      for (int64_t i = begin * image; i < end * image; ++i) {
        to[i] = behind(sums[i - begin * image], i % s.channels) + (added ? added[i] : C(0));
      }
    });
  };
  wide == ScalarType::Double ? form(double{}) : form(float{});
  activate(z, static_cast<Activation>(activation));
  return to_dtype(z, x_.scalar_type());
}

// A new tensor of like's dtype and sizes that holds the values.
Tensor rounded(const std::vector<double>& values, const Tensor& like) {
  const auto sizes = like.sizes();
  const Tensor wide = new_dense(like, sizes, ScalarType::Double);
  std::copy(values.begin(), values.end(), static_cast<double*>(wide.mutable_data_ptr()));
  return to_dtype(wide, like.scalar_type());
}

std::tuple<Tensor, Tensor> depthwise_conv_backward(const Tensor& dy_,      // (N, H', W', C)
                                                   const Tensor& x_,       // (N, H, W, C)
                                                   const Tensor& weight_,  // (C, kh, kw)
                                                   int64_t stride_h, int64_t stride_w,
                                                   int64_t pad_h, int64_t pad_w, bool need_dx,
                                                   bool need_dweight) {
  const DepthwiseShape s = check_depthwise_conv_backward(
      "depthwise_conv_backward", dy_, x_, weight_, {stride_h, stride_w, pad_h, pad_w});
  const NoGradGuard no_grad;
  const auto doubles = [](const Tensor& t) { return dense(to_dtype(t, ScalarType::Double)); };
  const Tensor dy = doubles(dy_), x = doubles(x_), weight = doubles(weight_);
  const auto at = [](const Tensor& t) { return static_cast<const double*>(t.const_data_ptr()); };
  const Tensor none = new_dense(x_, std::vector<int64_t>{0});
  Tensor dx = none, dweight = none;
  if (need_dx) {
    std::vector<double> sums(x.numel());
    for_each_product(s, 0, s.n, [&](int64_t i, int64_t j, int64_t tap, int64_t c) {
      sums[j] += at(dy)[i] * at(weight)[c * s.taps() + tap];
    });
    dx = rounded(sums, x_);
  }
  if (need_dweight) {
    std::vector<double> sums(weight.numel());
    for_each_product(s, 0, s.n, [&](int64_t i, int64_t j, int64_t tap, int64_t c) {
      sums[c * s.taps() + tap] += at(dy)[i] * at(x)[j];
    });
    dweight = rounded(sums, weight_);
  }
  return {dx, dweight};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("depthwise_conv", FUSEDOPS_BOX(&depthwise_conv));
  m.impl("depthwise_conv_backward", FUSEDOPS_BOX(&depthwise_conv_backward));
}

}  // namespace fusedops::cpu
