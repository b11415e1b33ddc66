// Batch norm over the rows of (..., C) on the CPU: in fp32 (fp64), rounded once; sums in double, in
// an order that does not depend on the threads.
#include <cmath>
#include <tuple>
#include <vector>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/aten.h"
#include "csrc/common/host/batch_norm_parts.h"
#include "csrc/cpu/activation.h"
#include "csrc/cpu/pointwise.h"

namespace fusedops::cpu {
namespace {

constexpr int64_t kChunkRows = 256;

std::vector<int64_t> shape_of(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return {sizes.begin(), sizes.end()};
}

template <typename C>
const C* values(const Tensor& tensor) {
  return static_cast<const C*>(tensor.const_data_ptr());
}

template <typename Fn>
void with_wide(const Tensor& x, Fn fn) {
  wide_dtype(x) == ScalarType::Double ? fn(double{}) : fn(float{});
}

// A vector of channels in the compute type, or one value where it is absent.
template <typename C>
std::vector<C> channel_values(const std::optional<Tensor>& vector, int64_t channels, C absent) {
  std::vector<C> result(channels, absent);
  if (!vector) return result;
  const Tensor wide =
      dense(to_dtype(*vector, sizeof(C) == 8 ? ScalarType::Double : ScalarType::Float));
  std::copy_n(values<C>(wide), channels, result.begin());
  return result;
}

template <typename C>
struct Norm {
  std::vector<C> mean, rstd, weight, bias;

  Norm(const NormVectors& norm, int64_t channels, double eps)
      : mean(channel_values<C>(norm.mean, channels, 0)),
        rstd(channel_values<C>(norm.var, channels, 1)),
        weight(channel_values<C>(norm.weight, channels, 1)),
        bias(channel_values<C>(norm.bias, channels, C(-0.0))) {
    if (!norm.var) return;
    for (C& value : rstd) value = C(1) / std::sqrt(value + static_cast<C>(eps));
  }
};

// Calls fn(row, c) for all elements, rows in parallel.
template <typename Fn>
void for_each(const BatchNormShape& shape, Fn fn) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, shape.channels));
  torch::stable::parallel_for(0, shape.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t c = 0; c < shape.channels; ++c) fn(row * shape.channels + c, c);
    }
  });
}

// sums[k][c] over rows of what fn adds to (element, channel, its kCount sums).
template <int kCount, typename Fn>
std::vector<double> channel_sums(const BatchNormShape& shape, Fn fn) {
  const int64_t channels = shape.channels;
  const int64_t chunks = (shape.rows + kChunkRows - 1) / kChunkRows;
  std::vector<double> partial(chunks * kCount * channels);
  torch::stable::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      double* const sums = partial.data() + chunk * kCount * channels;
      const int64_t stop = std::min((chunk + 1) * kChunkRows, shape.rows);
      for (int64_t row = chunk * kChunkRows; row < stop; ++row) {
        for (int64_t c = 0; c < channels; ++c) {
          const std::array<double, kCount> terms = fn(row * channels + c, c);
          for (int k = 0; k < kCount; ++k) sums[k * channels + c] += terms[k];
        }
      }
    }
  });
  std::vector<double> total(kCount * channels);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int64_t i = 0; i < kCount * channels; ++i)
      total[i] += partial[chunk * kCount * channels + i];
  }
  return total;
}

// Sums over the rows of channels and of their squares, about the first of the moments' means.
std::vector<double> joined_sums(const Tensor& moments,  // (2, C, blocks)
                                const BatchNormShape& shape, std::vector<double>& first) {
  const int64_t blocks = moments.size(2);
  std::vector<double> sums(2 * shape.channels);
  for (int64_t c = 0; c < shape.channels; ++c) {
    const double* const means = values<double>(moments) + c * blocks;
    const double* const squares = means + shape.channels * blocks;
    first[c] = means[0];
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t left = shape.rows - block * kMomentRows;
      const auto rows = static_cast<double>(std::min(left, kMomentRows));
      const double away = means[block] - first[c];
      sums[c] += rows * away;
      sums[shape.channels + c] += squares[block] + rows * away * away;
    }
  }
  return sums;
}

template <typename C>
void store(const Tensor& to, const std::vector<double>& from, int64_t first) {
  C* const data = static_cast<C*>(to.mutable_data_ptr());
  for (int64_t i = 0; i < to.numel(); ++i) data[i] = static_cast<C>(from[first + i]);
}

// running = (1 - momentum) running + momentum value
void mix(const std::optional<Tensor>& running, const std::vector<double>& value, double momentum) {
  if (!running) return;
  const Tensor now = to_dtype(*running, ScalarType::Double);
  const Tensor mixed = new_dense(now, now.sizes());
  double* const to = static_cast<double*>(mixed.mutable_data_ptr());
  for (size_t c = 0; c < value.size(); ++c) {
    to[c] = (1 - momentum) * values<double>(now)[c] + momentum * value[c];
  }
  Tensor target = *running;
  torch::stable::copy_(target, mixed);
}

std::tuple<Tensor, Tensor> batch_norm_statistics_(
    const Tensor& x_,                           // (..., C)
    const std::optional<Tensor>& moments,       // (2, C, blocks)
    const std::optional<Tensor>& shift,         // (C,)
    const std::optional<Tensor>& running_mean,  // (C,), written
    const std::optional<Tensor>& running_var,   // (C,), written
    double momentum) {
  const BatchNormShape shape = check_batch_norm_statistics("batch_norm_statistics_", x_, moments,
                                                           shift, running_mean, running_var);
  const NoGradGuard no_grad;
  const int64_t channels = shape.channels;
  Tensor mean = new_dense(x_, {channels}, wide_dtype(x_));
  Tensor var = new_dense(x_, {channels}, wide_dtype(x_));
  if (shape.rows == 0) return {torch::stable::zero_(mean), torch::stable::zero_(var)};
  const Tensor x = dense(x_);
  std::vector<double> sums;
  std::vector<double> first(channels), means(channels), unbiased(channels);
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    using C = Compute<D>;
    // NOTE: about the first row, since a mean of many standard deviations would cost digits.
    const auto* const data = cpu::data<D>(x);
    if (moments) {
      sums = joined_sums(dense(*moments), shape, first);
    } else {
      for (int64_t c = 0; c < channels; ++c) first[c] = static_cast<C>(data[c]);
      sums = channel_sums<2>(shape, [&](int64_t i, int64_t c) -> std::array<double, 2> {
        const double away = static_cast<C>(data[i]) - first[c];
        return {away, away * away};
      });
    }
    const std::vector<C> moved = channel_values<C>(shift, channels, 0);
    const auto rows = static_cast<double>(shape.rows);
    std::vector<double> biased(channels);
    for (int64_t c = 0; c < channels; ++c) {
      const double offset = sums[c] / rows;
      const double square = sums[channels + c] - offset * offset * rows;
      means[c] = first[c] + offset;
      biased[c] = (square < 0 ? 0 : square) / rows;
      unbiased[c] = biased[c] * rows / std::max(rows - 1, 1.0);
    }
    store<C>(mean, means, 0);
    store<C>(var, biased, 0);
    for (int64_t c = 0; c < channels; ++c) means[c] += moved[c];
  });
  mix(running_mean, means, momentum);
  mix(running_var, unbiased, momentum);
  return {mean, var};
}

// z = (x - mean) rstd weight + bias + residual, a new tensor of the compute type.
Tensor normalised(const Tensor& x_, const NormVectors& vectors,
                  const std::optional<Tensor>& residual_, double eps, const BatchNormShape& shape) {
  const Tensor x = dense(x_);
  const std::optional<Tensor> residual = dense(residual_);
  const Tensor z = new_dense(x, x.sizes(), wide_dtype(x));
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    using C = Compute<D>;
    const Norm<C> norm(vectors, shape.channels, eps);
    const auto* const from = data<D>(x);
    const auto* const added = residual ? data<D>(*residual) : nullptr;
    C* const to = static_cast<C*>(z.mutable_data_ptr());
    for_each(shape, [&](int64_t i, int64_t c) {
      const C scale = norm.rstd[c] * norm.weight[c];
      to[i] = (static_cast<C>(from[i]) - norm.mean[c]) * scale + norm.bias[c];
      if (added) to[i] += static_cast<C>(added[i]);
    });
  });
  return z;
}

Tensor batch_norm_apply(const Tensor& x,                        // (..., C)
                        const std::optional<Tensor>& mean,      // (C,)
                        const std::optional<Tensor>& var,       // (C,)
                        const std::optional<Tensor>& weight,    // (C,)
                        const std::optional<Tensor>& bias,      // (C,)
                        const std::optional<Tensor>& residual,  // (..., C)
                        double eps, int64_t activation) {
  const NormVectors vectors{mean, var, weight, bias};
  const BatchNormShape shape =
      check_batch_norm_apply("batch_norm_apply", x, vectors, residual, activation);
  const NoGradGuard no_grad;
  const Tensor z = normalised(x, vectors, residual, eps, shape);
  activate(z, static_cast<Activation>(activation));
  return to_dtype(z, x.scalar_type());
}

// dz = dy act'(z), contiguous and of the compute type.
Tensor gradient(const Tensor& dy, const Tensor& x, const NormVectors& vectors,
                const std::optional<Tensor>& saved, double eps, Activation activation,
                const BatchNormShape& shape) {
  const ScalarType wide = wide_dtype(x);
  const Tensor grad = dense(to_dtype(dy, wide));
  const Saved kept = saved_for_backward(activation);
  if (kept == Saved::kNothing) return grad;
  if (kept == Saved::kOutput && saved) {
    return activation_backward(grad, dense(to_dtype(*saved, wide)), activation);
  }
  const Tensor z = normalised(x, vectors, saved, eps, shape);
  if (kept == Saved::kOutput) activate(z, activation);
  return activation_backward(grad, z, activation);
}

// dz in x's dtype: a new tensor, or one of shape (0,) where it is not needed.
Tensor returned(const Tensor& dz, const Tensor& x, bool need_dz) {
  if (!need_dz) return new_dense(x, {0});
  return copy_as(dz, x.scalar_type());
}

std::tuple<Tensor, Tensor> batch_norm_sums(const Tensor& dy,                     // (..., C)
                                           const Tensor& x_,                     // (..., C)
                                           const std::optional<Tensor>& mean,    // (C,)
                                           const std::optional<Tensor>& var,     // (C,)
                                           const std::optional<Tensor>& weight,  // (C,)
                                           const std::optional<Tensor>& bias,    // (C,)
                                           const std::optional<Tensor>& saved,   // (..., C)
                                           double eps, int64_t activation, bool need_dz) {
  const NormVectors vectors{mean, var, weight, bias};
  const BatchNormShape shape =
      check_batch_norm_backward("batch_norm_sums", dy, x_, vectors, saved, activation);
  const NoGradGuard no_grad;
  const Tensor x = dense(to_dtype(x_, wide_dtype(x_)));
  const Tensor dz =
      gradient(dy, x_, vectors, saved, eps, static_cast<Activation>(activation), shape);
  const Tensor sums = new_dense(dy, {2, shape.channels}, wide_dtype(x));
  with_wide(x, [&]<typename C>(C) {
    const Norm<C> norm(vectors, shape.channels, eps);
    const C* const from = values<C>(x);
    const C* const grad = values<C>(dz);
    std::vector<double> found =
        channel_sums<2>(shape, [&](int64_t i, int64_t c) -> std::array<double, 2> {
          return {grad[i], double{grad[i]} * (from[i] - norm.mean[c])};
        });
    for (int64_t c = 0; c < shape.channels; ++c) found[shape.channels + c] *= norm.rstd[c];
    store<C>(sums, found, 0);
  });
  return {sums, returned(dz, x_, need_dz)};
}

std::tuple<Tensor, Tensor> batch_norm_backward(const Tensor& dy,                     // (..., C)
                                               const Tensor& x_,                     // (..., C)
                                               const std::optional<Tensor>& mean,    // (C,)
                                               const std::optional<Tensor>& var,     // (C,)
                                               const std::optional<Tensor>& weight,  // (C,)
                                               const std::optional<Tensor>& bias,    // (C,)
                                               const std::optional<Tensor>& saved,   // (..., C)
                                               const std::optional<Tensor>& sums,    // (2, C)
                                               const std::optional<Tensor>& count,   // ()
                                               double eps, int64_t activation, bool need_dz) {
  constexpr const char* kOp = "batch_norm_backward";
  const NormVectors vectors{mean, var, weight, bias};
  const BatchNormShape shape = check_batch_norm_backward(kOp, dy, x_, vectors, saved, activation);
  check_batch_norm_sums(kOp, sums, count, x_);
  const NoGradGuard no_grad;
  const Tensor x = dense(to_dtype(x_, wide_dtype(x_)));
  const Tensor dz =
      gradient(dy, x_, vectors, saved, eps, static_cast<Activation>(activation), shape);
  const Tensor dx = new_dense(x, x.sizes());
  with_wide(x, [&]<typename C>(C) {
    const Norm<C> norm(vectors, shape.channels, eps);
    const C rows = count ? *values<C>(*count) : static_cast<C>(shape.rows);
    std::vector<C> mean_dz(shape.channels), slope(shape.channels);
    if (sums) {
      const Tensor total = dense(*sums);
      for (int64_t c = 0; c < shape.channels; ++c) {
        mean_dz[c] = values<C>(total)[c] / rows;
        slope[c] = values<C>(total)[shape.channels + c] / rows * norm.rstd[c];
      }
    }
    const C* const from = values<C>(x);
    const C* const grad = values<C>(dz);
    C* const to = static_cast<C*>(dx.mutable_data_ptr());
    for_each(shape, [&](int64_t i, int64_t c) {
      C centred = grad[i];
      if (sums) centred = centred - mean_dz[c] - slope[c] * (from[i] - norm.mean[c]);
      to[i] = centred * norm.rstd[c] * norm.weight[c];
    });
  });
  return {to_dtype(dx, x_.scalar_type()), returned(dz, x_, need_dz)};
}

constexpr auto kTrain = &batch_norm_train<batch_norm_statistics_, batch_norm_apply>;
constexpr auto kTrainBackward = &batch_norm_train_backward<batch_norm_sums, batch_norm_backward>;

std::tuple<Tensor, Tensor> batch_norm_fold(const Tensor& weight_,                   // (O, K)
                                           const std::optional<Tensor>& conv_bias,  // (O,)
                                           const std::optional<Tensor>& mean,       // (O,)
                                           const std::optional<Tensor>& var,        // (O,)
                                           const std::optional<Tensor>& bn_weight,  // (O,)
                                           const std::optional<Tensor>& bias,       // (O,)
                                           double eps) {
  const NormVectors vectors{mean, var, bn_weight, bias};
  const DType dtype = check_batch_norm_fold("batch_norm_fold", weight_, conv_bias, vectors);
  const NoGradGuard no_grad;
  const int64_t outputs = weight_.size(0), inner = weight_.size(1);
  const Tensor weight = dense(weight_);
  const Tensor folded = new_dense(weight, {outputs, inner});
  const Tensor shift = new_dense(weight, {outputs});
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using C = Compute<D>;
    const Norm<C> norm(vectors, outputs, eps);
    const std::vector<C> added = channel_values<C>(conv_bias, outputs, 0);
    for (int64_t o = 0; o < outputs; ++o) {
      const C scale = norm.rstd[o] * norm.weight[o];
      for (int64_t i = o * inner; i < (o + 1) * inner; ++i) {
        mutable_data<D>(folded)[i] =
            static_cast<Storage<D>>(static_cast<C>(data<D>(weight)[i]) * scale);
      }
      mutable_data<D>(shift)[o] =
          static_cast<Storage<D>>((added[o] - norm.mean[o]) * scale + norm.bias[o]);
    }
  });
  return {folded, shift};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("batch_norm_statistics_", FUSEDOPS_BOX(&batch_norm_statistics_));
  m.impl("batch_norm_apply", FUSEDOPS_BOX(&batch_norm_apply));
  m.impl("batch_norm_sums", FUSEDOPS_BOX(&batch_norm_sums));
  m.impl("batch_norm_backward", FUSEDOPS_BOX(&batch_norm_backward));
  m.impl("batch_norm_train_", FUSEDOPS_BOX(kTrain));
  m.impl("batch_norm_train_backward", FUSEDOPS_BOX(kTrainBackward));
  m.impl("batch_norm_fold", FUSEDOPS_BOX(&batch_norm_fold));
}

}  // namespace fusedops::cpu
