// layer_norm and rms_norm on CUDA.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <tuple>
#include <type_traits>

#include "common/device_types.cuh"
#include "common/dispatch.h"
#include "common/row_check.h"
#include "cuda/norm.cuh"
#include "cuda/row_plan.h"

namespace fusedops::cuda {
namespace {

struct NormTensors {
  const Tensor& x;
  const std::optional<Tensor>& residual;
  const std::optional<Tensor>& weight;
  const std::optional<Tensor>& bias;
  Tensor y, sum, mean, rstd;
};

template <class T>
T* data_or_null(const std::optional<Tensor>& tensor) {
  return tensor ? static_cast<T*>(const_cast<void*>(tensor->const_data_ptr())) : nullptr;
}

template <bool kRms, class T, class W, bool kRagged>
void launch(const NormTensors& t, const NormShape& shape, int64_t norm_dims, double eps,
            const LaunchScope& scope) {
  // Config
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>;
  const RowInput x = row_input(t.x, shape.n, norm_dims, kVec);
  const RowInput residual = t.residual ? row_input(*t.residual, shape.n, norm_dims, kVec) : x;
  NormForward<T, W> p{};
  p.x = x.as<T>();
  p.x_stride = x.stride;
  p.residual = t.residual ? residual.as<T>() : nullptr;
  p.residual_stride = residual.stride;
  p.weight = data_or_null<const W>(t.weight);
  p.bias = data_or_null<const W>(t.bias);
  p.y = t.y.mutable_data_ptr();
  p.sum = t.residual ? static_cast<T*>(t.sum.mutable_data_ptr()) : nullptr;
  p.mean = kRms ? nullptr : static_cast<C*>(t.mean.mutable_data_ptr());
  p.rstd = static_cast<C*>(t.rstd.mutable_data_ptr());
  p.eps = static_cast<C>(eps);
  p.wide = t.y.scalar_type() != t.x.scalar_type();
  // NOTE: a block stays where it fills a multiprocessor, and where its parameters cost more than a
  // row: two of them, or one that it has to load element by element.
  constexpr int kMax = kNormChunks<kRms, T, W, kRagged>;
  const bool stays = !kRms || kRagged || shape.n > kRowThreads / 2 * kMax * kVec;
  const RowProblem problem{shape.rows, shape.n,   kVec,          t.residual ? 2 : 1,
                           kMax,       sizeof(C), stays ? 0 : 3, !kRms || kRagged};
  const auto kernel = norm_kernel<kRms, T, W, kRagged>;
  const RowPlan plan = plan_rows(reinterpret_cast<const void*>(kernel), problem, scope);

  // Launch
  if (plan.held) {
    launch_rows(kernel, plan, scope, p, plan.layout);
  } else {
    launch_plain(norm_long_kernel<kRms, T, W>, dim3(blocks_of_long_rows(shape.rows, scope)),
                 dim3(kStreamThreads), scope, p, shape.rows, shape.n);
  }
}

template <bool kRms>
void norm(const char* op, NormTensors& t, int64_t norm_dims, double eps, bool fp32_out) {
  // Guard
  const LaunchScope scope(op, t.x);

  // Contract and checks
  const NormShape shape = check_norm(op, t.x, t.residual, t.weight, t.bias, norm_dims, fp32_out);
  const std::optional<Tensor>& parameter = t.weight ? t.weight : t.bias;
  const std::optional<Tensor> weight =
      t.weight ? std::optional(torch::stable::contiguous(*t.weight)) : std::nullopt;
  const std::optional<Tensor> bias =
      t.bias ? std::optional(torch::stable::contiguous(*t.bias)) : std::nullopt;

  // Allocate
  const ScalarType dtype = t.x.scalar_type();
  t.y = torch::stable::new_empty(t.x, t.x.sizes(), fp32_out ? ScalarType::Float : dtype);
  t.sum = t.residual ? torch::stable::new_empty(t.x, t.x.sizes(), dtype)
                     : torch::stable::new_empty(t.x, {0}, dtype);
  t.rstd = torch::stable::new_empty(t.x, {shape.rows}, compute_type(shape.dtype));
  if (!kRms) t.mean = torch::stable::new_empty(t.x, {shape.rows}, compute_type(shape.dtype));

  // Empty early return
  if (t.x.numel() == 0) {
    torch::stable::fill_(t.rstd, 0);
    if (!kRms) torch::stable::fill_(t.mean, 0);
    return;
  }

  // Config, launch
  const NormTensors dense{t.x, t.residual, weight, bias, t.y, t.sum, t.mean, t.rstd};
  const bool mixed = parameter && parameter->scalar_type() != dtype;
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    dispatch_bool(mixed, [&]<bool kMixed>(Tag<kMixed>) {
      using T = DeviceType<D>;
      using W = std::conditional_t<kMixed && sizeof(T) == 2, float, T>;
      dispatch_ragged<T>(shape.n, [&]<bool kRagged>(Tag<kRagged>) {
        launch<kRms, T, W, kRagged>(dense, shape, norm_dims, eps, scope);
      });
    });
  });

  // Launch check
  check_launch(op);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> layer_norm(
    const Tensor& x,                        // (..., normalised dims)
    const std::optional<Tensor>& residual,  // like x
    const std::optional<Tensor>& weight,    // the normalised dims
    const std::optional<Tensor>& bias,      // the normalised dims
    int64_t norm_dims, double eps, bool fp32_out) {
  NormTensors t{x, residual, weight, bias};
  norm<false>("layer_norm", t, norm_dims, eps, fp32_out);
  return {t.y, t.sum, t.mean, t.rstd};
}

std::tuple<Tensor, Tensor, Tensor> rms_norm(const Tensor& x,  // (..., normalised dims)
                                            const std::optional<Tensor>& residual,  // like x
                                            const std::optional<Tensor>& weight,    // normalised
                                            int64_t norm_dims, double eps, bool fp32_out) {
  const std::optional<Tensor> no_bias;
  NormTensors t{x, residual, weight, no_bias};
  norm<true>("rms_norm", t, norm_dims, eps, fp32_out);
  return {t.y, t.sum, t.rstd};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("layer_norm", TORCH_BOX(&layer_norm));
  m.impl("rms_norm", TORCH_BOX(&rms_norm));
}

}  // namespace fusedops::cuda
