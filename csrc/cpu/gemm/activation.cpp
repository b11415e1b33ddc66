#include "csrc/cpu/activation.h"

#include <cmath>

#include "csrc/common/dispatch.h"
#include "csrc/common/host/aten.h"
#include "csrc/cpu/host_types.h"
#include "csrc/cpu/pointwise.h"

namespace fusedops::cpu {
namespace {

// out = fn(a, b) for fp32 or fp64; out may be an input.
template <class Fn>
void combine(const Tensor& a, const Tensor& b, const Tensor& out, Fn fn) {
  const auto run = [&]<DType D>(Tag<D>) {
    map<Storage<D>>(data<D>(a), data<D>(b), mutable_data<D>(out), out.numel(), fn);
  };
  out.scalar_type() == ScalarType::Double ? run(Tag<DType::kFloat64>{})
                                          : run(Tag<DType::kFloat32>{});
}

template <class Fn>
Tensor gradient(const Tensor& dy, const Tensor& saved, Fn fn) {
  const Tensor dz = torch::stable::empty_like(dy);
  combine(dy, saved, dz, fn);
  return dz;
}

constexpr double kQuickGeluScale = 1.702, kLeakyReluSlope = 0.01;

// An out variant of ATen, in place.
void in_place(const char* op, const Tensor& z) { call(op, "out", z, z); }

// scale * z, a new tensor.
Tensor scaled(const Tensor& z, double scale) {
  const Tensor out = torch::stable::empty_like(z);
  combine(z, z, out, [scale](auto v, auto) { return decltype(v)(scale) * v; });
  return out;
}

void quick_gelu(const Tensor& z) {
  const Tensor s = scaled(z, kQuickGeluScale);
  in_place("aten::sigmoid", s);
  combine(z, s, z, [](auto v, auto gate) { return v * gate; });
}

void softplus(const Tensor& z) {
  const Tensor given = torch::stable::clone(z);
  in_place("aten::exp", z);
  in_place("aten::log1p", z);
  combine(given, z, z, [](auto v, auto y) { return v > 20 ? v : y; });
}

void elu(const Tensor& z) {
  const Tensor given = torch::stable::clone(z);
  in_place("aten::expm1", z);
  combine(given, z, z, [](auto v, auto y) { return v > 0 ? v : y; });
}

// The derivative at z of quick_gelu, softplus or elu, from s: sigmoid(1.702 z), sigmoid(z), exp(z).
Tensor slope(const Tensor& z, Activation activation) {
  const bool quick = activation == Activation::kQuickGelu;
  const Tensor s = quick ? scaled(z, kQuickGeluScale) : torch::stable::clone(z);
  in_place(activation == Activation::kElu ? "aten::exp" : "aten::sigmoid", s);
  if (quick) {
    combine(s, z, s, [](auto gate, auto v) {
      return gate * (1 + decltype(v)(kQuickGeluScale) * v * (1 - gate));
    });
  } else if (activation == Activation::kSoftplus) {
    combine(s, z, s, [](auto gate, auto v) { return v > 20 ? 1 : gate; });
  } else {
    combine(s, z, s, [](auto e, auto v) { return v > 0 ? 1 : e; });
  }
  return s;
}

// NOTE: oneDNN, which ATen calls for fp32, makes NaN of infinity.
void gelu(const Tensor& z) {
  const Tensor given = torch::stable::clone(z);
  call("aten::gelu_", "", z, std::string("none"));
  combine(given, z, z, [](auto x, auto y) { return x == INFINITY ? x : y; });
}

}  // namespace

Tensor preactivation(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                     Activation activation) {
  const bool any_order = activation == Activation::kNone || activation == Activation::kRelu;
  const ScalarType dtype = any_order ? x.scalar_type() : wide_dtype(x);
  return dense(aten_linear(x, weight, bias, dtype));
}

void activate(const Tensor& z, Activation activation) {
  switch (activation) {
    case Activation::kNone: break;
    case Activation::kRelu: call("aten::relu_", "", z); break;
    case Activation::kGelu: gelu(z); break;
    case Activation::kGeluTanh: call("aten::gelu_", "", z, std::string("tanh")); break;
    case Activation::kSilu: call("aten::silu_", "", z); break;
    case Activation::kSigmoid: call("aten::sigmoid_", "", z); break;
    case Activation::kTanh: call("aten::tanh_", "", z); break;
    case Activation::kRelu2:
      call("aten::relu_", "", z);
      call("aten::square_", "", z);
      break;
    case Activation::kQuickGelu: quick_gelu(z); break;
    case Activation::kLeakyRelu:
      combine(z, z, z, [](auto v, auto) { return v > 0 ? v : decltype(v)(kLeakyReluSlope) * v; });
      break;
    case Activation::kHardswish: call("aten::hardswish_", "", z); break;
    case Activation::kMish: call("aten::mish_", "", z); break;
    case Activation::kSoftplus: softplus(z); break;
    case Activation::kElu: elu(z); break;
    case Activation::kRelu6:
      combine(z, z, z, [](auto v, auto) { return v <= 0 ? decltype(v){0} : v > 6 ? 6 : v; });
      break;
  }
}

Tensor activated(const Tensor& z, Activation activation) {
  const auto make = [&](const char* op, const auto&... options) {
    return call(op, "out", z, options..., torch::stable::empty_like(z));
  };
  switch (activation) {
    case Activation::kGeluTanh: return make("aten::gelu", std::string("tanh"));
    case Activation::kSilu: return make("aten::silu");
    case Activation::kSigmoid: return make("aten::sigmoid");
    case Activation::kTanh: return make("aten::tanh");
    default: break;
  }
  const Tensor y = torch::stable::clone(z);
  activate(y, activation);
  return y;
}

Tensor activation_backward(const Tensor& dy, const std::optional<Tensor>& saved,
                           Activation activation) {
  if (activation == Activation::kNone) return dy;
  const Tensor grad = dense(to_dtype(dy, wide_dtype(dy)));
  const Tensor kept = dense(to_dtype(*saved, wide_dtype(dy)));
  switch (activation) {
    case Activation::kGelu: return call("aten::gelu_backward", "", grad, kept, std::string("none"));
    case Activation::kGeluTanh:
      return call("aten::gelu_backward", "", grad, kept, std::string("tanh"));
    case Activation::kSilu: return call("aten::silu_backward", "", grad, kept);
    case Activation::kSigmoid: return call("aten::sigmoid_backward", "", grad, kept);
    case Activation::kTanh: return call("aten::tanh_backward", "", grad, kept);
    // 2 z dy where z is positive (or NaN), else 0; dy where the output is, else 0.
    case Activation::kRelu2:
      return gradient(grad, kept,
                      [](auto d, auto z) { return z <= 0 ? decltype(d){0} : 2 * z * d; });
    case Activation::kQuickGelu:
    case Activation::kSoftplus:
    case Activation::kElu:
      return gradient(grad, slope(kept, activation), [](auto d, auto s) { return d * s; });
    case Activation::kLeakyRelu:
      return gradient(grad, kept,
                      [](auto d, auto y) { return y > 0 ? d : decltype(d)(kLeakyReluSlope) * d; });
    case Activation::kHardswish: return call("aten::hardswish_backward", "", grad, kept);
    case Activation::kMish: return call("aten::mish_backward", "", grad, kept);
    case Activation::kRelu6:
      return gradient(grad, kept,
                      [](auto d, auto y) { return y <= 0 || y >= 6 ? decltype(d){0} : d; });
    default:
      return gradient(grad, kept, [](auto d, auto y) { return y <= 0 ? decltype(d){0} : d; });
  }
}

}  // namespace fusedops::cpu
