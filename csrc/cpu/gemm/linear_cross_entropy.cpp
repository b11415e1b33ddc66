// linear_cross_entropy on the CPU: ATen's GEMMs over chunks of rows, whose gradient replaces their
// logits.
#include <algorithm>
#include <tuple>
#include <vector>

#include "csrc/common/checks/linear_cross_entropy_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/cpu/gemm/mlp_parts.h"
#include "csrc/cpu/rows.h"

namespace fusedops::cpu {
namespace {

// What the rows of all chunks share.
struct Rows {
  LinearCrossEntropyShape shape;
  LossOptions options;
  const int64_t* target;
  const Tensor& losses;  // (M,) in the compute dtype
  const Tensor* dloss;   // (M,) or (1,) in the compute dtype, or null
  double factor;         // of every row's gradient, beside dloss
  bool gradient;
};

// The loss of a row; its gradient replaces the logits.
template <DType D>
void finish_row(const Rows& r, Storage<D>* x, int64_t row) {
  using C = Compute<D>;
  const auto& [ignore_index, smoothing, softcap, z_loss] = r.options;
  const int64_t n = r.shape.n, target = r.target[row];
  C& loss = static_cast<C*>(r.losses.mutable_data_ptr())[row];
  loss = 0;
  if (target == ignore_index) {
    if (r.gradient) std::fill(x, x + n, Storage<D>(0));
    return;
  }
  std::vector<C> logits(x, x + n);
  if (softcap != 0) {
    for (C& y : logits) y = static_cast<C>(softcap * std::tanh(y / softcap));
  }
  C lse;
  const double cross_entropy = row_loss(logits.data(), n, target, smoothing, lse);
  loss = static_cast<C>(cross_entropy + z_loss * lse * lse);
  if (!r.gradient) return;
  C factor = static_cast<C>(r.factor);
  if (r.dloss) {
    factor *= static_cast<const C*>(r.dloss->const_data_ptr())[r.shape.per_row() ? row : 0];
  }
  const C other = static_cast<C>(-smoothing / static_cast<double>(n));
  const C weight = static_cast<C>(1 + 2 * z_loss * lse);
  for (int64_t i = 0; i < n; ++i) {
    C g = std::exp(logits[i] - lse) * weight + other;
    if (i == target) g -= static_cast<C>(1 - smoothing);
    if (softcap != 0) g *= static_cast<C>(1 - (logits[i] / softcap) * (logits[i] / softcap));
    x[i] = static_cast<Storage<D>>(g * factor);
  }
}

// Losses to the loss, in the order of the rows.
template <DType D>
Tensor sum_losses(const Rows& r, double count) {
  if (r.shape.per_row()) return r.losses;
  const auto* losses = static_cast<const Compute<D>*>(r.losses.const_data_ptr());
  double total = 0;
  for (int64_t row = 0; row < r.shape.m; ++row) total += losses[row];
  const Tensor loss = torch::stable::empty({}, compute_type(r.shape.dtype));
  *static_cast<Compute<D>*>(loss.mutable_data_ptr()) =
      static_cast<Compute<D>>(r.shape.mean() ? total / count : total);
  return loss;
}

struct Gradients {
  Tensor dx, dweight, dbias;
  bool need_dx, need_dweight, need_dbias;
};

// What is not needed has shape (0,).
Tensor zeros(const Tensor& like, bool needed, std::vector<int64_t> sizes, ScalarType dtype) {
  if (!needed) sizes = {0};
  return torch::stable::new_zeros(like, sizes, dtype);
}

// Allocates the gradients of a call whose chunks have `most` rows, all zero.
Gradients gradients_of(const LinearCrossEntropyShape& shape, const Tensor& x, ScalarType parameter,
                       int64_t most, bool need_dx, bool need_dweight, bool need_dbias) {
  const ScalarType summed = weight_sum_type(parameter, shape.m, most);
  return {zeros(x, need_dx, {shape.m, shape.k}, x.scalar_type()),
          zeros(x, need_dweight, {shape.n, shape.k}, summed),
          zeros(x, need_dbias, {shape.n}, compute_type(shape.dtype)),
          need_dx,
          need_dweight,
          need_dbias};
}

// Counts the rows that enter the loss.
double count_targets(const int64_t* target, int64_t rows, int64_t ignore_index) {
  return static_cast<double>(
      std::count_if(target, target + rows, [&](int64_t t) { return t != ignore_index; }));
}

// Adds what the rows [first, first + count) give to the gradients.
void add_chunk(const Gradients& g, const Tensor& dz, const Tensor& x, const Tensor& weight,
               int64_t first, int64_t count) {
  if (g.need_dx) {
    Tensor all = g.dx, rows = torch::stable::narrow(all, 0, first, count);
    torch::stable::copy_(rows, aten_mm(dz, weight));
  }
  if (g.need_dweight) {
    // NOTE: rounded once to a half dweight, with what it held.
    const bool narrow = first > 0 && x.element_size() == 2;
    deliver(weight_gradient(dz, x, narrow ? ScalarType::Float : g.dweight.scalar_type()), g.dweight,
            first > 0);
  }
  if (g.need_dbias) deliver(sum_rows(dz, g.dbias.scalar_type()), g.dbias, first > 0);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> linear_cross_entropy(
    const Tensor& x,                     // (M, K)
    const Tensor& weight,                // (V, K)
    const std::optional<Tensor>& bias,   // (V,)
    const Tensor& target,                // (M,)
    const std::optional<Tensor>& dloss,  // (M,) or ()
    int64_t ignore_index, double label_smoothing, double softcap, double z_loss, int64_t reduction,
    bool fp32_out, int64_t chunk_size, bool need_dx, bool need_dweight, bool need_dbias,
    bool dweight_fp32, bool /*allow_tf32*/) {
  // Checks
  const LossOptions options{ignore_index, label_smoothing, softcap, z_loss};
  const LinearCrossEntropyShape shape =
      check_linear_cross_entropy("linear_cross_entropy", x, weight, bias, target, dloss, options,
                                 reduction, fp32_out, chunk_size);
  const NoGradGuard no_grad;
  const Tensor targets = dense(target);
  check_targets(targets, shape.n, ignore_index);

  // Allocate
  const ScalarType dtype = x.scalar_type(), compute = compute_type(shape.dtype);
  const ScalarType parameter = dweight_fp32 ? ScalarType::Float : dtype;
  const int64_t most = rows_of_chunk(shape.m, shape.n * x.element_size(), chunk_size);
  const Gradients g = gradients_of(shape, x, parameter, most, need_dx, need_dweight, need_dbias);
  const Tensor losses = torch::stable::empty({shape.m}, compute);
  std::optional<Tensor> wide;
  if (dloss) wide = dense(torch::stable::to(*dloss, compute));
  const auto* indices = static_cast<const int64_t*>(targets.const_data_ptr());
  const double count = count_targets(indices, shape.m, ignore_index);
  const double inverse = shape.mean() && count > 0 ? 1 / count : 1;
  const bool later = divides_later(shape, dloss.has_value());
  const Rows rows{shape,
                  options,
                  indices,
                  losses,
                  wide ? &*wide : nullptr,
                  later ? 1 : inverse,
                  need_dx || need_dweight || need_dbias};

  // Launch
  return dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    for (int64_t first = 0; first < shape.m; first += most) {
      const int64_t size = std::min(most, shape.m - first);
      Tensor all = x, part = torch::stable::narrow(all, 0, first, size);
      const Tensor z = dense(aten_linear(part, weight, bias, x.scalar_type()));
      for_rows(size, shape.n, [&](int64_t row) {
        finish_row<D>(rows, mutable_data<D>(z) + row * shape.n, first + row);
      });
      if (rows.gradient) add_chunk(g, z, part, weight, first, size);
    }
    Tensor scale = torch::stable::empty({1}, compute);
    torch::stable::fill_(scale, later ? inverse : 1);
    const Tensor loss =
        torch::stable::to(sum_losses<D>(rows, count), fp32_out ? ScalarType::Float : dtype);
    return std::make_tuple(loss, scale, g.dx, torch::stable::to(g.dweight, parameter),
                           torch::stable::to(g.dbias, parameter));
  });
}

void scale_gradient_(const Tensor& gradient, const Tensor& dloss,  // ()
                     const Tensor& scale) {                        // (1,)
  // Checks
  const DType dtype = check_scale_gradient("scale_gradient_", gradient, dloss, scale);

  // Launch
  const NoGradGuard no_grad;
  const auto value = [](const Tensor& number) {
    const Tensor wide = torch::stable::to(number, ScalarType::Double);
    return *static_cast<const double*>(wide.const_data_ptr());
  };
  const double factor = value(dloss) * value(scale);
  if (factor == 1) return;
  const Tensor rows = dense(gradient);
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using C = Compute<D>;
    Storage<D>* const g = mutable_data<D>(rows);
    map<C>(g, g, rows.numel(), [&](C each) { return each * static_cast<C>(factor); });
  });
  if (gradient.is_contiguous()) return;
  Tensor strided = gradient;
  torch::stable::copy_(strided, rows);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("linear_cross_entropy", FUSEDOPS_BOX(&linear_cross_entropy));
  m.impl("scale_gradient_", FUSEDOPS_BOX(&scale_gradient_));
}

}  // namespace fusedops::cpu
