// scale_bias_act, its out variant and its backward on the CPU: in fp32 (fp64), rounded once.
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cpu/activation.h"
#include "csrc/cpu/elementwise/elementwise.h"

namespace fusedops::cpu {
namespace {

constexpr DType compute_dtype(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

// x * scale + bias, a new contiguous fp32 (fp64) tensor.
Tensor affine(const char* op, const Tensor& x, const std::optional<Tensor>& scale,
              const std::optional<Tensor>& bias, DType dtype) {
  const Tensor z = new_dense(x, x.sizes(), scalar_type_of(compute_dtype(dtype)));
  const NamedTensor inputs[] = {{"x", &x}, named("scale", scale), named("bias", bias)};
  const IterationSpace space = iteration_space(op, z, inputs);
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = Storage<D>;
    using C = Compute<D>;
    const std::array<T, 3> absent{T(0), T(1), T(-0.0f)};
    for_each_element(space, pointers<T, 3>(inputs, absent), static_cast<C*>(z.mutable_data_ptr()),
                     [](const auto& v, int64_t) {
                       return static_cast<C>(v[0]) * static_cast<C>(v[1]) + static_cast<C>(v[2]);
                     });
  });
  return z;
}

// act(x * scale + bias) in the compute dtype.
Tensor compute(const char* op, const Tensor& x, const std::optional<Tensor>& scale,
               const std::optional<Tensor>& bias, DType dtype, Activation activation) {
  const Tensor z = affine(op, x, scale, bias, dtype);
  activate(z, activation);
  return z;
}

Tensor scale_bias_act(const Tensor& x,                     // (..., N)
                      const std::optional<Tensor>& scale,  // (N,)
                      const std::optional<Tensor>& bias,   // (N,)
                      int64_t activation) {
  const DType dtype = check_scale_bias_act("scale_bias_act", x, scale, bias, activation);
  const NoGradGuard no_grad;
  const Tensor z =
      compute("scale_bias_act", x, scale, bias, dtype, static_cast<Activation>(activation));
  if (x.is_contiguous()) return torch::stable::to(z, x.scalar_type());
  const NamedTensor like[] = {{"x", &x}};
  Tensor out = new_result(shape_of(x), like);
  torch::stable::copy_(out, z);
  return out;
}

void scale_bias_act_out(const Tensor& x,                     // (..., N)
                        const std::optional<Tensor>& scale,  // (N,)
                        const std::optional<Tensor>& bias,   // (N,)
                        int64_t activation,
                        Tensor out) {  // (..., N)
  const DType dtype = check_scale_bias_act("scale_bias_act", x, scale, bias, activation);
  const NamedTensor inputs[] = {{"x", &x}, named("scale", scale), named("bias", bias)};
  check_out("scale_bias_act", out, shape_of(x), inputs);
  const NoGradGuard no_grad;
  torch::stable::copy_(
      out, compute("scale_bias_act", x, scale, bias, dtype, static_cast<Activation>(activation)));
}

// a * b in the compute dtype, contiguous; b broadcasts.
Tensor product(const char* op, const Tensor& a, const Tensor& b) {
  const Tensor out = new_dense(a, a.sizes());
  const NamedTensor inputs[] = {{"a", &a}, {"b", &b}};
  const IterationSpace space = iteration_space(op, out, inputs);
  const auto run = [&]<typename C>(C) {
    for_each_element(space, pointers<C, 2>(inputs, {}), static_cast<C*>(out.mutable_data_ptr()),
                     [](const auto& v, int64_t) { return v[0] * v[1]; });
  };
  a.scalar_type() == ScalarType::Double ? run(double{}) : run(float{});
  return out;
}

std::tuple<Tensor, Tensor, Tensor> scale_bias_act_backward(
    const Tensor& dy,                    // (..., N)
    const Tensor& x,                     // (..., N)
    const std::optional<Tensor>& scale,  // (N,)
    const std::optional<Tensor>& bias,   // (N,)
    int64_t activation, bool need_dx, bool need_dscale, bool need_dbias) {
  constexpr const char* kOp = "scale_bias_act_backward";
  const DType dtype = check_scale_bias_act_backward(kOp, dy, x, scale, bias, activation);
  const NoGradGuard no_grad;
  const ScalarType wide = scalar_type_of(compute_dtype(dtype)), narrow = dy.scalar_type();
  const auto code = static_cast<Activation>(activation);
  const Tensor saved = affine(kOp, x, scale, bias, dtype);
  if (saved_for_backward(code) == Saved::kOutput) activate(saved, code);
  const Tensor dz = activation_backward(torch::stable::to(dy, wide), saved, code);

  const int64_t n = dy.size(dy.dim() - 1);
  const int64_t rows = leading_numel(dy);
  const auto column_sums = [&](const Tensor& values) {
    return sum_rows(as_matrix(values, rows, n), narrow);
  };
  const auto nothing = [&] { return new_dense(dy, {0}); };
  Tensor dx = nothing();
  if (need_dx) {
    dx = new_dense(dy, dy.sizes());
    torch::stable::copy_(dx, scale ? product(kOp, dz, torch::stable::to(*scale, wide)) : dz);
  }
  return {dx, need_dscale ? column_sums(product(kOp, dz, torch::stable::to(x, wide))) : nothing(),
          need_dbias ? column_sums(dz) : nothing()};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("scale_bias_act", FUSEDOPS_BOX(&scale_bias_act));
  m.impl("scale_bias_act_out", FUSEDOPS_BOX(&scale_bias_act_out));
  m.impl("scale_bias_act_backward", FUSEDOPS_BOX(&scale_bias_act_backward));
}

}  // namespace fusedops::cpu
