#include "cpu/activation.h"

#include "common/dispatch.h"
#include "cpu/aten.h"
#include "cpu/host_types.h"
#include "cpu/pointwise.h"

namespace fusedops::cpu {
namespace {

// dy where the output is positive (or NaN), else 0.
Tensor relu_backward(const Tensor& dy, const Tensor& y, DType dtype) {
  const Tensor dz = torch::stable::empty_like(dy);
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = Storage<D>;
    map<T>(data<D>(dy), data<D>(y), mutable_data<D>(dz), dy.numel(),
           [](T grad, T value) { return static_cast<Compute<D>>(value) <= 0 ? T(0) : grad; });
  });
  return dz;
}

// 2 z dy where z is positive (or NaN), else 0.
Tensor relu2_backward(const Tensor& dy, const Tensor& z, DType dtype) {
  const Tensor dz = torch::stable::empty_like(dy);
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = Compute<D>;
    map<T>(data<D>(dy), data<D>(z), mutable_data<D>(dz), dy.numel(),
           [](T grad, T value) { return value <= 0 ? T(0) : 2 * value * grad; });
  });
  return dz;
}

}  // namespace

void activate(const Tensor& z, const LinearShape& shape) {
  switch (shape.activation) {
    case Activation::kNone: break;
    case Activation::kRelu: call("aten::relu_", "", z); break;
    case Activation::kGelu: call("aten::gelu_", "", z, std::string("none")); break;
    case Activation::kGeluTanh: call("aten::gelu_", "", z, std::string("tanh")); break;
    case Activation::kSilu: call("aten::silu_", "", z); break;
    case Activation::kSigmoid: call("aten::sigmoid_", "", z); break;
    case Activation::kTanh: call("aten::tanh_", "", z); break;
    case Activation::kRelu2:
      call("aten::relu_", "", z);
      call("aten::square_", "", z);
      break;
  }
}

Tensor activation_backward(const Tensor& dy, const std::optional<Tensor>& saved,
                           const LinearShape& shape) {
  if (shape.activation == Activation::kNone) return dy;
  const Tensor grad = torch::stable::contiguous(dy);
  const Tensor kept = torch::stable::contiguous(*saved);
  switch (shape.activation) {
    case Activation::kGelu: return call("aten::gelu_backward", "", grad, kept, std::string("none"));
    case Activation::kGeluTanh:
      return call("aten::gelu_backward", "", grad, kept, std::string("tanh"));
    case Activation::kSilu: return call("aten::silu_backward", "", grad, kept);
    case Activation::kSigmoid: return call("aten::sigmoid_backward", "", grad, kept);
    case Activation::kTanh: return call("aten::tanh_backward", "", grad, kept);
    case Activation::kRelu2: return relu2_backward(grad, kept, shape.dtype);
    default: return relu_backward(grad, kept, shape.dtype);
  }
}

}  // namespace fusedops::cpu
