// bias_dropout_residual, its out variant and its backward on the CPU; the mask is the GPU's.
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/philox.h"
#include "csrc/cpu/elementwise/elementwise.h"

namespace fusedops::cpu {
namespace {

class Mask {
 public:
  Mask(const std::optional<Tensor>& seed, double p)
      : rule_(p),
        key_(rule_.drops
                 ? static_cast<uint64_t>(*static_cast<const int64_t*>(seed->const_data_ptr()))
                 : 0) {}

  bool keeps(int64_t position) const {
    if (!rule_.drops) return true;
    Random4 random[1];
    philox(key_, position / 4, random);
    return rule_.keeps(random->word[position % 4]);
  }
  double scale() const { return rule_.scale; }

 private:
  DropoutRule rule_;
  uint64_t key_;
};

void compute(const char* op, const Tensor& out, const NamedTensor (&inputs)[3], DType dtype,
             const Mask& mask) {
  const IterationSpace space = iteration_space(op, out, inputs, /*keep_order=*/true);
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = Storage<D>;
    using C = Compute<D>;
    const std::array<T, 3> absent{T(0), T(-0.0f), T(-0.0f)};
    const C scale = static_cast<C>(mask.scale());
    for_each_element(space, pointers<T, 3>(inputs, absent), mutable_data<D>(out),
                     [&](const auto& v, int64_t position) {
                       const C z = static_cast<C>(v[0]) + static_cast<C>(v[1]);
                       const C kept = mask.keeps(position) ? z * scale : C(0);
                       return static_cast<T>(kept + static_cast<C>(v[2]));
                     });
  });
}

Tensor bias_dropout_residual(const Tensor& x,                        // (..., N)
                             const std::optional<Tensor>& bias,      // (N,)
                             const std::optional<Tensor>& residual,  // (..., N)
                             const std::optional<Tensor>& seed,      // (1,) int64
                             double p) {
  constexpr const char* kOp = "bias_dropout_residual";
  const DType dtype = check_bias_dropout_residual(kOp, x, bias, residual, seed, p);
  const Tensor out = new_dense(x, x.sizes());
  compute(kOp, out, {{"x", &x}, named("bias", bias), named("residual", residual)}, dtype,
          Mask(seed, p));
  return out;
}

void bias_dropout_residual_out(const Tensor& x,                        // (..., N)
                               const std::optional<Tensor>& bias,      // (N,)
                               const std::optional<Tensor>& residual,  // (..., N)
                               const std::optional<Tensor>& seed,      // (1,) int64
                               double p,
                               const Tensor& out) {  // (..., N)
  constexpr const char* kOp = "bias_dropout_residual";
  const NamedTensor inputs[] = {{"x", &x}, named("bias", bias), named("residual", residual)};
  const DType dtype = check_bias_dropout_residual(kOp, x, bias, residual, seed, p);
  check_out(kOp, out, shape_of(x), inputs);
  compute(kOp, out, inputs, dtype, Mask(seed, p));
}

std::tuple<Tensor, Tensor> bias_dropout_residual_backward(
    const Tensor& dy,                   // (..., N)
    const std::optional<Tensor>& seed,  // (1,) int64
    double p, bool need_dx, bool need_dbias) {
  constexpr const char* kOp = "bias_dropout_residual_backward";
  const DType dtype = check_bias_dropout_residual_backward(kOp, dy, seed, p);
  const NoGradGuard no_grad;
  const Mask mask(seed, p);
  const auto gradient = [&](DType wide) {
    const Tensor source = torch::stable::to(dy, scalar_type_of(wide));
    const Tensor out = new_dense(source, dy.sizes());
    compute(kOp, out, {{"dy", &source}, {"bias", nullptr}, {"residual", nullptr}}, wide, mask);
    return out;
  };
  const auto nothing = [&] { return new_dense(dy, {0}); };
  const int64_t n = dy.size(dy.dim() - 1);
  // NOTE: the sum is over values that are not rounded to dy's dtype yet.
  const DType wide = dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  return {need_dx ? gradient(dtype) : nothing(),
          need_dbias ? sum_rows(as_matrix(gradient(wide), leading_numel(dy), n), dy.scalar_type())
                     : nothing()};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("bias_dropout_residual", FUSEDOPS_BOX(&bias_dropout_residual));
  m.impl("bias_dropout_residual_out", FUSEDOPS_BOX(&bias_dropout_residual_out));
  m.impl("bias_dropout_residual_backward", FUSEDOPS_BOX(&bias_dropout_residual_backward));
}

}  // namespace fusedops::cpu
