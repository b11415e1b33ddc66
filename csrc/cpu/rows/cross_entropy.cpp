// cross_entropy and its gradient on the CPU.
#include <tuple>
#include <vector>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cpu/rows.h"

namespace fusedops::cpu {
namespace {

struct Options {
  const int64_t* target;
  int64_t ignore_index;
  double smoothing;
};

template <DType D>
void forward(const Tensor& logits, const Options& o, const CrossEntropyShape& shape,
             const Tensor& loss, const Tensor& lse, const Tensor& scale) {
  using C = Compute<D>;
  const Storage<D>* x = data<D>(logits);
  C* lse_out = static_cast<C*>(lse.mutable_data_ptr());
  std::vector<double> losses(static_cast<size_t>(shape.rows));
  for_rows(shape.rows, shape.n, [&](int64_t row) {
    lse_out[row] = 0;
    if (o.target[row] == o.ignore_index) return;
    losses[row] = row_loss(x + row * shape.n, shape.n, o.target[row], o.smoothing, lse_out[row]);
  });
  double total = 0, count = 0;
  for (int64_t row = 0; row < shape.rows; ++row) {
    total += losses[row];
    count += o.target[row] != o.ignore_index;
  }
  const bool mean = shape.reduction == Reduction::kMean;
  if (mean) *static_cast<C*>(scale.mutable_data_ptr()) = static_cast<C>(1 / count);
  const auto write = [&](auto* out) {
    using O = std::remove_pointer_t<decltype(out)>;
    if (shape.reduction != Reduction::kNone) {
      *out = static_cast<O>(mean ? total / count : total);
      return;
    }
    for (int64_t row = 0; row < shape.rows; ++row) out[row] = static_cast<O>(losses[row]);
  };
  if (loss.scalar_type() == logits.scalar_type()) {
    write(mutable_data<D>(loss));
  } else {
    write(mutable_data<DType::kFloat32>(loss));
  }
}

std::tuple<Tensor, Tensor, Tensor> cross_entropy(const Tensor& logits,  // (M, V)
                                                 const Tensor& target,  // (M,)
                                                 int64_t ignore_index, double label_smoothing,
                                                 int64_t reduction, bool fp32_out) {
  // Checks
  const CrossEntropyShape shape =
      check_cross_entropy("cross_entropy", logits, target, label_smoothing, reduction, fp32_out);
  const NoGradGuard no_grad;
  const Tensor targets = dense(target);
  check_targets(targets, shape.n, ignore_index);

  // Allocate
  const Tensor x = dense(logits);
  const ScalarType dtype = fp32_out ? ScalarType::Float : logits.scalar_type();
  const ScalarType compute = compute_type(shape.dtype);
  const Tensor loss = shape.reduction == Reduction::kNone
                          ? torch::stable::empty({shape.rows}, dtype)
                          : torch::stable::empty({}, dtype);
  const Tensor lse = torch::stable::empty({shape.rows}, compute);
  const Tensor scale = torch::stable::empty({shape.reduction == Reduction::kMean ? 1 : 0}, compute);

  // Launch
  const Options options{static_cast<const int64_t*>(targets.const_data_ptr()), ignore_index,
                        label_smoothing};
  dispatch_dtype(shape.dtype,
                 [&]<DType D>(Tag<D>) { forward<D>(x, options, shape, loss, lse, scale); });
  return {loss, lse, scale};
}

template <DType D, typename O>
void backward(const O* dloss, const Tensor& logits, const Options& o,
              const CrossEntropyShape& shape, const Tensor& lse, const Tensor& scale,
              const Tensor& dlogits) {
  using C = Compute<D>;
  const C* lse_in = static_cast<const C*>(lse.const_data_ptr());
  const C mean_scale =
      shape.reduction == Reduction::kMean ? *static_cast<const C*>(scale.const_data_ptr()) : C{1};
  const C other = static_cast<C>(-o.smoothing / static_cast<double>(shape.n));
  for_rows(shape.rows, shape.n, [&](int64_t row) {
    const int64_t target = o.target[row];
    const bool ignored = target == o.ignore_index;
    const C factor =
        static_cast<C>(dloss[shape.reduction == Reduction::kNone ? row : 0]) * mean_scale;
    const Storage<D>* x = data<D>(logits) + row * shape.n;
    Storage<D>* dx = mutable_data<D>(dlogits) + row * shape.n;
    for (int64_t i = 0; i < shape.n; ++i) {
      C g = std::exp(static_cast<C>(x[i]) - lse_in[row]) + other;
      if (i == target) g -= static_cast<C>(1 - o.smoothing);
      dx[i] = static_cast<Storage<D>>(ignored ? C{0} : g * factor);
    }
  });
}

Tensor cross_entropy_backward(const Tensor& dloss,   // (M,) or ()
                              const Tensor& logits,  // (M, V)
                              const Tensor& target,  // (M,)
                              const Tensor& lse,     // (M,)
                              const Tensor& scale,   // (1,) or (0,)
                              int64_t ignore_index, double label_smoothing, int64_t reduction) {
  // Checks
  const CrossEntropyShape shape = check_cross_entropy_backward(
      "cross_entropy_backward", dloss, logits, target, lse, scale, label_smoothing, reduction);
  const NoGradGuard no_grad;
  const Tensor targets = dense(target);
  check_targets(targets, shape.n, ignore_index);

  // Allocate
  const Tensor grad = dense(dloss);
  const Tensor x = dense(logits);
  const Tensor lse_dense = dense(lse);
  const Tensor dlogits = torch::stable::empty(logits.sizes(), logits.scalar_type());

  // Launch
  const Options options{static_cast<const int64_t*>(targets.const_data_ptr()), ignore_index,
                        label_smoothing};
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    if (dloss.scalar_type() == logits.scalar_type()) {
      backward<D>(data<D>(grad), x, options, shape, lse_dense, scale, dlogits);
    } else {
      backward<D>(data<DType::kFloat32>(grad), x, options, shape, lse_dense, scale, dlogits);
    }
  });
  return dlogits;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("cross_entropy", FUSEDOPS_BOX(&cross_entropy));
  m.impl("cross_entropy_backward", FUSEDOPS_BOX(&cross_entropy_backward));
}

}  // namespace fusedops::cpu
