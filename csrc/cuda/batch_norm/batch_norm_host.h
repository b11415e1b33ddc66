// Host side of the passes over channels: operands, grid and launches.
#pragma once

#include <initializer_list>
#include <tuple>
#include <vector>

#include "csrc/common/checks/batch_norm_check.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/batch_norm/batch_norm_pass.cuh"

namespace fusedops::cuda {

inline const void* pointer(const std::optional<Tensor>& tensor) {
  return tensor ? tensor->const_data_ptr() : nullptr;
}

// NOTE: beside x of float32 or float64, T is Compute<T>.
inline bool is_wide(const Tensor& vector) {
  return vector.scalar_type() == ScalarType::Float || vector.scalar_type() == ScalarType::Double;
}

// The vectors of a norm, contiguous, for as long as a launch needs them.
struct DenseNorm {
  std::optional<Tensor> mean, var, weight, bias;

  explicit DenseNorm(const NormVectors& norm)
      : mean(dense(norm.mean)),
        var(dense(norm.var)),
        weight(dense(norm.weight)),
        bias(dense(norm.bias)) {}

  NormArguments arguments(double eps) const {
    return {vector(mean), vector(var), vector(weight), vector(bias), eps};
  }
  static ChannelVector vector(const std::optional<Tensor>& tensor) {
    if (!tensor) return {};
    return {tensor->const_data_ptr(), is_wide(*tensor)};
  }
};

// The operands of the backward passes, contiguous; what nothing reads stays null.
struct GradientOperands {
  Tensor dy, x;
  std::optional<Tensor> saved;
  DenseNorm norm;

  GradientOperands(const Tensor& dy_, const Tensor& x_, const NormVectors& vectors,
                   const std::optional<Tensor>& saved_)
      : dy(dense(dy_)), x(dense(x_)), saved(dense(saved_)), norm(vectors) {}

  PassProblem problem(const BatchNormShape& shape, double eps, Activation activation) const {
    PassProblem p{shape.rows, shape.channels};
    p.dy = dy.const_data_ptr();
    p.x = x.const_data_ptr();
    p.norm = norm.arguments(eps);
    p.activation = activation;
    const Saved kept = saved_for_backward(activation);
    if (kept != Saved::kNothing) p.added = pointer(saved);
    p.added_is_output = kept == Saved::kOutput && p.added != nullptr;
    return p;
  }
};

// Elements of an access: 16 bytes where every row of every operand allows them, else one.
inline int access_width(DType dtype, int64_t channels, std::initializer_list<const void*> data) {
  const int64_t vec = 16 / dtype_bytes(dtype);
  bool fits = channels % vec == 0;
  for (const void* at : data) fits = fits && reinterpret_cast<uintptr_t>(at) % 16 == 0;
  return fits ? static_cast<int>(vec) : 1;
}

inline std::vector<int64_t> shape_of(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return {sizes.begin(), sizes.end()};
}

inline StatisticsResult statistics_result(const Tensor& mean, const Tensor& var,
                                          const std::optional<Tensor>& shift,
                                          const std::optional<Tensor>& running_mean,
                                          const std::optional<Tensor>& running_var,
                                          double momentum) {
  StatisticsResult result{};
  result.mean = mean.mutable_data_ptr();
  result.var = var.mutable_data_ptr();
  result.shift = DenseNorm::vector(shift);
  result.momentum = momentum;
  if (running_mean) {
    result.running_mean = running_mean->mutable_data_ptr();
    result.mean_wide = is_wide(*running_mean);
  }
  if (running_var) {
    result.running_var = running_var->mutable_data_ptr();
    result.var_wide = is_wide(*running_var);
  }
  return result;
}

// Calls body.operator()<T>() for the two types of 16 bits.
template <class Body>
void with_half(DType dtype, Body&& body) {
  dispatch(Choices<DType::kFloat16, DType::kBFloat16>{}, dtype,
           [&]<DType D>(Tag<D>) { body.template operator()<DeviceType<D>>(); });
}

// Launches kernel_of.operator()<T, kVec, kAdded>() over the grid of a pass.
template <class KernelOf>
cudaError_t launch_pass(const PassProblem& p, DType dtype, int vec, const LaunchScope& scope,
                        KernelOf&& kernel_of) {
  const dim3 grid(static_cast<unsigned>(p.grid.row_blocks * p.grid.col_blocks));
  const bool overlap = scope.facts().code_version >= 90;
  cudaError_t status = cudaSuccess;
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    with_added(p, [&]<bool kAdded>() {
      const auto kernel = vec > 1 ? kernel_of.template operator()<T, 16 / sizeof(T), kAdded>()
                                  : kernel_of.template operator()<T, 1, kAdded>();
      status = launch_kernel(kernel, grid, dim3(kWalkThreads), 0, scope.stream(), overlap, p);
    });
  });
  return status;
}

// ---- the passes one by one, as their schemas say ----

std::tuple<Tensor, Tensor> batch_norm_statistics_(const Tensor& x,
                                                  const std::optional<Tensor>& moments,
                                                  const std::optional<Tensor>& shift,
                                                  const std::optional<Tensor>& running_mean,
                                                  const std::optional<Tensor>& running_var,
                                                  double momentum);

Tensor batch_norm_apply(const Tensor& x, const std::optional<Tensor>& mean,
                        const std::optional<Tensor>& var, const std::optional<Tensor>& weight,
                        const std::optional<Tensor>& bias, const std::optional<Tensor>& residual,
                        double eps, int64_t activation);

std::tuple<Tensor, Tensor> batch_norm_sums(const Tensor& dy, const Tensor& x,
                                           const std::optional<Tensor>& mean,
                                           const std::optional<Tensor>& var,
                                           const std::optional<Tensor>& weight,
                                           const std::optional<Tensor>& bias,
                                           const std::optional<Tensor>& saved, double eps,
                                           int64_t activation, bool need_dz);

std::tuple<Tensor, Tensor> batch_norm_backward(
    const Tensor& dy, const Tensor& x, const std::optional<Tensor>& mean,
    const std::optional<Tensor>& var, const std::optional<Tensor>& weight,
    const std::optional<Tensor>& bias, const std::optional<Tensor>& saved,
    const std::optional<Tensor>& sums, const std::optional<Tensor>& count, double eps,
    int64_t activation, bool need_dz);

}  // namespace fusedops::cuda
