// Reductions on the CPU: ATen's, in the compute type.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/checks/reduce_check.h"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/aten.h"
#include "csrc/cpu/pointwise.h"

namespace fusedops::cpu {
namespace {

using Dims = std::vector<int64_t>;
using OptionalType = std::optional<ScalarType>;

// x with at least one reduced dimension, and which these are. ATen takes an empty list for all.
struct Input {
  Tensor x;
  Dims dims;
};

Input make_input(const Tensor& x, const ReduceShape& shape) {
  Input input{x, {}};
  for (size_t i = 0; i < shape.reduced.size(); ++i) {
    if (shape.reduced[i]) input.dims.push_back(static_cast<int64_t>(i));
  }
  if (input.dims.empty()) {
    input.dims.push_back(x.dim());
    input.x = torch::stable::unsqueeze(x, x.dim());
  }
  return input;
}

// The reduced dimensions as one, the last: (outputs, count).
Tensor as_rows(const Input& input, const ReduceShape& shape) {
  Dims order;
  for (int64_t i = 0; i < input.x.dim(); ++i) {
    if (std::find(input.dims.begin(), input.dims.end(), i) == input.dims.end()) order.push_back(i);
  }
  order.insert(order.end(), input.dims.begin(), input.dims.end());
  return torch::stable::reshape(call("aten::permute", "", input.x, order),
                                {shape.outputs, shape.count});
}

// Zeros become ones.
Tensor without_zeros(const Tensor& x) {
  const Tensor ones = torch::stable::empty(x.sizes(), x.scalar_type());
  return call("aten::where", "self", call("aten::logical_not", "", x),
              torch::stable::fill_(ones, 1), x);
}

Tensor product(const Input& input, const ReduceShape& shape) {
  Tensor rows = as_rows(input, shape);
  if (is_floating(shape.element)) rows = to_dtype(rows, wide_dtype(rows));
  if (shape.reduction == Reduction::kProdNonzero) rows = without_zeros(rows);
  return call("aten::prod", "dim_int", rows, int64_t{1}, false, OptionalType());
}

Tensor norm(const Input& input, Reduction reduction) {
  const Tensor wide = to_dtype(input.x, wide_dtype(input.x));
  if (reduction == Reduction::kNorm2) {
    const Tensor squares = call("aten::square", "", wide);
    return call("aten::sqrt", "", torch::stable::sum(squares, input.dims, false, std::nullopt));
  }
  const Tensor size = call("aten::abs", "", wide);
  if (reduction == Reduction::kNormInf) return call("aten::amax", "", size, input.dims, false);
  if (reduction == Reduction::kNormMinusInf) return call("aten::amin", "", size, input.dims, false);
  return torch::stable::sum(size, input.dims, false, std::nullopt);
}

Tensor compute(const Input& input, const ReduceShape& shape) {
  const bool floating = is_floating(shape.element);
  const OptionalType wide = floating ? OptionalType(wide_dtype(input.x)) : std::nullopt;
  switch (shape.reduction) {
    case Reduction::kSum: return torch::stable::sum(input.x, input.dims, false, wide);
    case Reduction::kMean:
      return call("aten::mean", "dim", input.x, std::optional(input.dims), false, wide);
    case Reduction::kProd:
    case Reduction::kProdNonzero: return product(input, shape);
    case Reduction::kAmax: return call("aten::amax", "", input.x, input.dims, false);
    case Reduction::kAmin: return call("aten::amin", "", input.x, input.dims, false);
    case Reduction::kLogsumexp:
      return call("aten::logsumexp", "", to_dtype(input.x, *wide), input.dims, false);
    case Reduction::kCountNonzero:
      return call("aten::count_nonzero", "dim_IntList", input.x, input.dims);
    case Reduction::kAny:
      return call("aten::any", "dims", input.x, std::optional(input.dims), false);
    case Reduction::kAll:
      return call("aten::all", "dims", input.x, std::optional(input.dims), false);
    case Reduction::kArgmax:
    case Reduction::kArgmin: {
      // NOTE: ATen refuses bool.
      const Tensor rows = as_rows(input, shape);
      return call(shape.reduction == Reduction::kArgmax ? "aten::argmax" : "aten::argmin", "",
                  shape.element == Element::kBool ? to_dtype(rows, ScalarType::Byte) : rows,
                  std::optional<int64_t>(1), false);
    }
    default: return norm(input, shape.reduction);
  }
}

// A result of ATen as the op returns it: a new contiguous tensor.
Tensor finish(const Tensor& result, const ReduceShape& shape) {
  const Tensor cast = dense(to_dtype(result, shape.dtype));
  return result_of_shape(cast, shape.sizes);
}

Tensor reduce(const Tensor& x,  // any shape
              int64_t reduction, int64_t dims, bool keepdim, bool wide) {
  // Checks
  const Reduction code = check_reduction("reduce", reduction);
  const ReduceShape shape = check_reduce(kReductionNames[reduction], x, code, dims, keepdim, wide);
  const NoGradGuard no_grad;

  // Empty early return
  if (shape.outputs == 0 || shape.count == 0) {
    const Tensor out = torch::stable::empty(shape.sizes, shape.dtype);
    return torch::stable::fill_(out, empty_value(code));
  }

  // Launch
  return finish(compute(make_input(x, shape), shape), shape);
}

struct Moments {
  double mean, squares, count;  // squares: the sum of squared deviations from the mean
};

// NOTE: sums of deviations from the first value, so that equal values have a variance of exactly 0.
template <DType D>
Moments moments(const Storage<D>* x, int64_t n) {
  const auto value = [&](int64_t i) { return static_cast<double>(static_cast<Compute<D>>(x[i])); };
  const double first = std::isfinite(value(0)) ? value(0) : 0, count = static_cast<double>(n);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) sum += value(i) - first;
  const double shift = sum / count;
  for (int64_t i = 0; i < n; ++i) {
    const double deviation = value(i) - first - shift;
    squares += deviation * deviation;
  }
  return {first + shift, squares, count};
}

// Chan, Golub and LeVeque 1979.
Moments merged(const Moments& a, const Moments& b) {
  const double count = a.count + b.count, share = b.count / count, delta = b.mean - a.mean;
  return {a.mean + delta * share, a.squares + b.squares + delta * delta * a.count * share, count};
}

// fn(row, its moments); long rows are cut alike for any number of threads.
template <DType D, class Fn>
void each_row_moments(const Storage<D>* x, int64_t rows, int64_t n, Fn fn) {
  if (n <= kGrain) {
    torch::stable::parallel_for(0, rows, kGrain / n, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) fn(row, moments<D>(x + row * n, n));
    });
    return;
  }
  std::vector<Moments> parts((n + kGrain - 1) / kGrain);
  for (int64_t row = 0; row < rows; ++row) {
    const auto fill = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        parts[i] = moments<D>(x + row * n + i * kGrain, std::min(kGrain, n - i * kGrain));
      }
    };
    torch::stable::parallel_for(0, static_cast<int64_t>(parts.size()), 1, fill);
    fn(row, std::accumulate(parts.begin() + 1, parts.end(), parts.front(), merged));
  }
}

std::tuple<Tensor, Tensor> var_mean(const Tensor& x,  // any shape
                                    int64_t dims, double correction, bool root, bool keepdim,
                                    bool wide) {
  // Checks
  const ReduceShape shape =
      check_reduce(root ? "std" : "var", x, Reduction::kMean, dims, keepdim, wide);
  const NoGradGuard no_grad;

  // Empty early return
  if (shape.outputs == 0 || shape.count == 0) {
    const Tensor a = torch::stable::empty(shape.sizes, shape.dtype);
    const Tensor b = torch::stable::empty(shape.sizes, shape.dtype);
    const double nan = empty_value(Reduction::kMean);
    return {torch::stable::fill_(a, nan), torch::stable::fill_(b, nan)};
  }

  // Launch
  const Tensor rows = dense(as_rows(make_input(x, shape), shape));
  const Tensor variance = torch::stable::empty({shape.outputs}, ScalarType::Double);
  const Tensor mean = torch::stable::empty({shape.outputs}, ScalarType::Double);
  double *variances = mutable_data<DType::kFloat64>(variance),
         *means = mutable_data<DType::kFloat64>(mean);
  const double divisor = std::fmax(0.0, static_cast<double>(shape.count) - correction);
  dispatch_dtype(dtype_of(shape.element), [&]<DType D>(Tag<D>) {
    each_row_moments<D>(data<D>(rows), shape.outputs, shape.count,
                        [&](int64_t row, const Moments& m) {
                          const double value = m.squares / divisor;
                          variances[row] = root ? std::sqrt(value) : value;
                          means[row] = m.mean;
                        });
  });
  return {finish(variance, shape), finish(mean, shape)};
}

std::tuple<Tensor, Tensor> extremum_count(const Tensor& x,  // any shape
                                          int64_t reduction, int64_t dims, bool keepdim) {
  // Checks
  const Reduction code = check_extremum(x, reduction);
  const ReduceShape shape = check_reduce(kReductionNames[reduction], x, code, dims, keepdim, false);
  const NoGradGuard no_grad;

  // Empty early return
  if (shape.outputs == 0) {
    return {torch::stable::empty(shape.sizes, shape.dtype),
            torch::stable::empty(shape.sizes, wide_dtype(x))};
  }

  // Launch
  const Input input = make_input(x, shape);
  const Tensor out = finish(compute(input, shape), shape);
  const bool absolute = code == Reduction::kNormInf || code == Reduction::kNormMinusInf;
  Dims spread = shape.kept_sizes;
  if (input.x.dim() > x.dim()) spread.push_back(1);
  const Tensor equal =
      call("aten::eq", "Tensor", absolute ? call("aten::abs", "", input.x) : input.x,
           torch::stable::reshape(out, spread));
  const Tensor count = torch::stable::sum(equal, input.dims, false, wide_dtype(x));
  return {out, result_of_shape(dense(count), shape.sizes)};
}

template <typename C>
C gradient_of(ReduceGradient gradient, C x, C scale, C shift) {
  const C sign = static_cast<C>((x > 0) - (x < 0));
  switch (gradient) {
    case ReduceGradient::kAffine: return scale * (x - shift);
    case ReduceGradient::kSign: return scale * sign;
    case ReduceGradient::kExp: return scale * std::exp(x - shift);
    // NOTE: products, not choices: without an equal element (NaN) scale is infinite, dx NaN.
    case ReduceGradient::kEqual: return scale * static_cast<C>(x == shift);
    case ReduceGradient::kEqualAbs: return sign * (scale * static_cast<C>(std::abs(x) == shift));
    default: return shift == 0 ? scale / x : shift == 1 && x == 0 ? scale : C{0};
  }
}

Tensor expanded(const Tensor& tensor, const Tensor& x) {
  const auto sizes = x.sizes();
  const Dims shape(sizes.begin(), sizes.end());
  return dense(call("aten::expand", "", tensor, shape, false));
}

Tensor reduce_backward(const Tensor& x,                     // any shape
                       const Tensor& scale,                 // that shape, or 1 in a dimension
                       const std::optional<Tensor>& shift,  // like scale
                       int64_t gradient) {
  // Checks
  const ReduceGradient code = check_reduce_backward(x, scale, shift, gradient);
  const NoGradGuard no_grad;

  // Contract
  const Tensor input = dense(x);
  const Tensor factor = expanded(scale, x);
  const Tensor offset = shift ? expanded(*shift, x) : factor;

  // Allocate
  const Tensor dx = torch::stable::empty(x.sizes(), x.scalar_type());

  // Launch
  dispatch_dtype(check_floating("reduce_backward", "x", x), [&]<DType D>(Tag<D>) {
    using C = Compute<D>;
    const auto* in = data<D>(input);
    const auto* factors = static_cast<const C*>(factor.const_data_ptr());
    const auto* offsets = static_cast<const C*>(offset.const_data_ptr());
    auto* out = mutable_data<D>(dx);
    torch::stable::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        out[i] = static_cast<Storage<D>>(
            gradient_of<C>(code, static_cast<C>(in[i]), factors[i], shift ? offsets[i] : C{0}));
      }
    });
  });
  return dx;
}

Tensor bias_grad(const Tensor& dy,  // (..., N)
                 bool wide) {
  check_floating("bias_grad", "dy", dy);
  check_min_dim("bias_grad", "dy", dy, 1);
  const NoGradGuard no_grad;
  const int64_t cols = dy.size(dy.dim() - 1);
  return sum_rows(as_matrix(dy, leading_numel(dy), cols), wide ? wide_dtype(dy) : dy.scalar_type());
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("reduce", FUSEDOPS_BOX(&reduce));
  m.impl("var_mean", FUSEDOPS_BOX(&var_mean));
  m.impl("extremum_count", FUSEDOPS_BOX(&extremum_count));
  m.impl("reduce_backward", FUSEDOPS_BOX(&reduce_backward));
  m.impl("bias_grad", FUSEDOPS_BOX(&bias_grad));
}

}  // namespace fusedops::cpu
