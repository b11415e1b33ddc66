// layer_norm, rms_norm and their gradients on the CPU.
#include <tuple>
#include <vector>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cpu/rows.h"

namespace fusedops::cpu {
namespace {

using OptionalTensor = std::optional<Tensor>;

// A parameter in the compute dtype, or empty for none.
template <DType D>
std::vector<Compute<D>> parameter(const OptionalTensor& tensor, int64_t n) {
  std::vector<Compute<D>> values;
  if (!tensor) return values;
  const Tensor contiguous = dense(*tensor);
  const auto copy = [&](const auto* from) { values.assign(from, from + n); };
  if (contiguous.scalar_type() == scalar_type_of(D)) {
    copy(data<D>(contiguous));
  } else {
    copy(data<DType::kFloat32>(contiguous));
  }
  return values;
}

struct Outputs {
  Tensor y, sum, mean, rstd;
};

template <bool kRms, DType D, typename O>
void forward(const Tensor& x, const OptionalTensor& residual, const OptionalTensor& weight,
             const OptionalTensor& bias, const NormShape& shape, double eps, const Outputs& out,
             O* y) {
  using T = Storage<D>;
  using C = Compute<D>;
  const std::vector<C> w = parameter<D>(weight, shape.n), b = parameter<D>(bias, shape.n);
  const Tensor rows = dense(x);
  if (residual) {
    const Tensor other = dense(*residual);
    map<C>(data<D>(rows), data<D>(other), mutable_data<D>(out.sum), shape.rows * shape.n,
           [](C p, C q) { return p + q; });
  }
  const T* from = residual ? data<D>(out.sum) : data<D>(rows);
  const bool statistics = out.rstd.numel() > 0;
  C* mean_out = kRms ? nullptr : static_cast<C*>(out.mean.mutable_data_ptr());
  C* rstd_out = static_cast<C*>(out.rstd.mutable_data_ptr());
  for_rows(shape.rows, shape.n, [&](int64_t row) {
    const T* in = from + row * shape.n;
    double mean = 0, squares = 0;
    if constexpr (!kRms) {
      for (int64_t i = 0; i < shape.n; ++i) mean += static_cast<C>(in[i]);
      mean /= static_cast<double>(shape.n);
    }
    for (int64_t i = 0; i < shape.n; ++i) {
      const double d = static_cast<C>(in[i]) - mean;
      squares += d * d;
    }
    const C center = static_cast<C>(mean);
    const C rstd = static_cast<C>(1 / std::sqrt(squares / static_cast<double>(shape.n) + eps));
    if (statistics) {
      if constexpr (!kRms) mean_out[row] = center;
      rstd_out[row] = rstd;
    }
    for (int64_t i = 0; i < shape.n; ++i) {
      C value = (static_cast<C>(in[i]) - center) * rstd;
      if (!w.empty()) value *= w[i];
      if (!b.empty()) value += b[i];
      y[row * shape.n + i] = static_cast<O>(value);
    }
  });
}

template <bool kRms>
Outputs norm(const char* op, const Tensor& x, const OptionalTensor& residual,
             const OptionalTensor& weight, const OptionalTensor& bias, int64_t norm_dims,
             double eps, bool fp32_out, bool need_statistics) {
  // Checks
  const NormShape shape = check_norm(op, x, residual, weight, bias, norm_dims, fp32_out);

  // Allocate
  const NoGradGuard no_grad;
  const ScalarType dtype = x.scalar_type(), compute = compute_type(shape.dtype);
  const int64_t count = need_statistics ? shape.rows : 0;
  Outputs out{torch::stable::empty(x.sizes(), fp32_out ? ScalarType::Float : dtype),
              residual ? torch::stable::empty(x.sizes(), dtype) : torch::stable::empty({0}, dtype),
              torch::stable::empty({kRms ? 0 : count}, compute),
              torch::stable::empty({count}, compute)};

  // Empty early return
  if (x.numel() == 0) {
    torch::stable::zero_(out.mean);
    torch::stable::zero_(out.rstd);
    return out;
  }

  // Launch
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    if (fp32_out) {
      forward<kRms, D>(x, residual, weight, bias, shape, eps, out,
                       mutable_data<DType::kFloat32>(out.y));
    } else {
      forward<kRms, D>(x, residual, weight, bias, shape, eps, out, mutable_data<D>(out.y));
    }
  });
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> layer_norm(const Tensor& x,  // (..., normalised dims)
                                                      const OptionalTensor& residual,  // like x
                                                      const OptionalTensor& weight,
                                                      const OptionalTensor& bias, int64_t norm_dims,
                                                      double eps, bool fp32_out,
                                                      bool need_statistics) {
  const Outputs out = norm<false>("layer_norm", x, residual, weight, bias, norm_dims, eps, fp32_out,
                                  need_statistics);
  return {out.y, out.sum, out.mean, out.rstd};
}

std::tuple<Tensor, Tensor, Tensor> rms_norm(const Tensor& x,                 // (..., normalised)
                                            const OptionalTensor& residual,  // like x
                                            const OptionalTensor& weight, int64_t norm_dims,
                                            double eps, bool fp32_out, bool need_statistics) {
  const Outputs out = norm<true>("rms_norm", x, residual, weight, std::nullopt, norm_dims, eps,
                                 fp32_out, need_statistics);
  return {out.y, out.sum, out.rstd};
}

// ---- backward ----

struct Gradients {
  Tensor dx, dweight, dbias;
  bool need_dx, need_dweight, need_dbias;
};

template <typename C>
struct Statistics {
  const C* mean;  // null for rms_norm
  const C* rstd;
  C mean_of(int64_t row) const { return mean == nullptr ? C{0} : mean[row]; }
};

template <bool kRms, DType D, typename S>
void input_gradient(const S* dy, const Storage<D>* x, const OptionalTensor& dresidual,
                    const std::vector<Compute<D>>& w, const Statistics<Compute<D>>& stats,
                    const NormShape& shape, Storage<D>* dx) {
  using C = Compute<D>;
  OptionalTensor more;
  if (dresidual) more = dense(*dresidual);
  for_rows(shape.rows, shape.n, [&](int64_t row) {
    const int64_t start = row * shape.n;
    const C mean = stats.mean_of(row), rstd = stats.rstd[row];
    const auto normal = [&](int64_t i) { return (static_cast<C>(x[start + i]) - mean) * rstd; };
    const auto grad = [&](int64_t i) {
      return w.empty() ? static_cast<C>(dy[start + i]) : static_cast<C>(dy[start + i]) * w[i];
    };
    double sum_gx = 0, sum_g = 0;
    for (int64_t i = 0; i < shape.n; ++i) {
      sum_gx += grad(i) * normal(i);
      sum_g += grad(i);
    }
    const C mean_gx = static_cast<C>(sum_gx / static_cast<double>(shape.n));
    const C mean_g = kRms ? C{0} : static_cast<C>(sum_g / static_cast<double>(shape.n));
    for (int64_t i = 0; i < shape.n; ++i) {
      C value = (grad(i) - mean_g - normal(i) * mean_gx) * rstd;
      if (more) value += static_cast<C>(data<D>(*more)[start + i]);
      dx[start + i] = static_cast<Storage<D>>(value);
    }
  });
}

// Columns are split over threads, so that every column is summed in the order of the rows.
template <DType D, typename S>
void parameter_gradients(const S* dy, const Storage<D>* x, const Statistics<Compute<D>>& stats,
                         const NormShape& shape, const Gradients& out) {
  using C = Compute<D>;
  std::vector<double> dweight(static_cast<size_t>(shape.n)), dbias(dweight);
  torch::stable::parallel_for(0, shape.n, row_grain(shape.rows), [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < shape.rows; ++row) {
      const C mean = stats.mean_of(row), rstd = stats.rstd[row];
      for (int64_t i = begin; i < end; ++i) {
        const C d = static_cast<C>(dy[row * shape.n + i]);
        dweight[i] += d * ((static_cast<C>(x[row * shape.n + i]) - mean) * rstd);
        dbias[i] += d;
      }
    }
  });
  const auto write = [&](const Tensor& tensor, const std::vector<double>& values) {
    if (tensor.scalar_type() == scalar_type_of(D)) {
      std::copy(values.begin(), values.end(), mutable_data<D>(tensor));
    } else {
      std::copy(values.begin(), values.end(), mutable_data<DType::kFloat32>(tensor));
    }
  };
  if (out.need_dweight) write(out.dweight, dweight);
  if (out.need_dbias) write(out.dbias, dbias);
}

template <bool kRms>
void backward(const char* op, const Tensor& dy, const OptionalTensor& dresidual, const Tensor& x,
              const OptionalTensor& weight, const OptionalTensor& mean, const Tensor& rstd,
              int64_t norm_dims, Gradients& out) {
  // Checks
  const NormShape shape = check_norm_backward(op, dy, dresidual, x, weight, mean, rstd, norm_dims);

  // Allocate
  const NoGradGuard no_grad;
  const auto sizes = x.sizes();
  const Sizes normalised(sizes.data() + x.dim() - norm_dims, norm_dims);
  const ScalarType dtype = weight ? weight->scalar_type() : x.scalar_type();
  const auto output = [](bool needed, const auto& shape_of_it, ScalarType type) {
    return needed ? torch::stable::empty(shape_of_it, type) : torch::stable::empty({0}, type);
  };
  out.dx = output(out.need_dx, sizes, x.scalar_type());
  out.dweight = output(out.need_dweight, normalised, dtype);
  out.dbias = output(out.need_dbias, normalised, dtype);

  // Launch
  const Tensor dy_dense = dense(dy), x_dense = dense(x);
  const Tensor rstd_dense = dense(rstd);
  OptionalTensor mean_dense;
  if (mean) mean_dense = dense(*mean);
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    using C = Compute<D>;
    const Statistics<C> stats{
        mean_dense ? static_cast<const C*>(mean_dense->const_data_ptr()) : nullptr,
        static_cast<const C*>(rstd_dense.const_data_ptr())};
    const auto run = [&](const auto* grad) {
      const Storage<D>* in = data<D>(x_dense);
      if (out.need_dx) {
        input_gradient<kRms, D>(grad, in, dresidual, parameter<D>(weight, shape.n), stats, shape,
                                mutable_data<D>(out.dx));
      }
      if (out.need_dweight || out.need_dbias) {
        parameter_gradients<D>(grad, in, stats, shape, out);
      }
    };
    if (dy.scalar_type() == x.scalar_type()) {
      run(data<D>(dy_dense));
    } else {
      run(data<DType::kFloat32>(dy_dense));
    }
  });
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(
    const Tensor& dy,                        // like x
    const OptionalTensor& dresidual,         // like x
    const Tensor& x,                         // (..., normalised dims)
    const OptionalTensor& weight,            // the normalised dims
    const Tensor& mean, const Tensor& rstd,  // (rows,)
    int64_t norm_dims, bool need_dx, bool need_dweight, bool need_dbias) {
  Gradients out{{}, {}, {}, need_dx, need_dweight, need_dbias};
  backward<false>("layer_norm_backward", dy, dresidual, x, weight, mean, rstd, norm_dims, out);
  return {out.dx, out.dweight, out.dbias};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& dy,                 // like x
                                             const OptionalTensor& dresidual,  // like x
                                             const Tensor& x,  // (..., normalised dims)
                                             const OptionalTensor& weight,
                                             const Tensor& rstd,  // (rows,)
                                             int64_t norm_dims, bool need_dx, bool need_dweight) {
  Gradients out{{}, {}, {}, need_dx, need_dweight, false};
  backward<true>("rms_norm_backward", dy, dresidual, x, weight, std::nullopt, rstd, norm_dims, out);
  return {out.dx, out.dweight};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("layer_norm", FUSEDOPS_BOX(&layer_norm));
  m.impl("layer_norm_backward", FUSEDOPS_BOX(&layer_norm_backward));
  m.impl("rms_norm", FUSEDOPS_BOX(&rms_norm));
  m.impl("rms_norm_backward", FUSEDOPS_BOX(&rms_norm_backward));
}

}  // namespace fusedops::cpu
