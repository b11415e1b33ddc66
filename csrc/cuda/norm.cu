// layer_norm and rms_norm on CUDA.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <tuple>
#include <type_traits>

#include "common/device_types.cuh"
#include "common/dispatch.h"
#include "common/row_check.h"
#include "common/shared_memory.cuh"
#include "cuda/norm_direct.cuh"
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

// Parameters as the kernels of several chunks per thread read them; the tensor keeps them alive.
template <class T, bool kRagged>
Tensor lay_out_parameters(const Tensor& x, NormForward<T, T>& p, bool bias, int n, int pitch,
                          const LaunchScope& scope) {
  constexpr int kShifts = kRagged ? kChunkOf<T> : 1;
  const bool needed = kRagged || p.weight == nullptr || (bias && p.bias == nullptr);
  const Tensor out = torch::stable::new_empty(x, {needed ? int64_t{2} * kShifts * pitch : 0});
  if (!needed) return out;
  T* const to = static_cast<T*>(out.mutable_data_ptr());
  launch_plain(norm_parameter_kernel<T>, dim3(ceil_div(pitch, kStreamThreads), kShifts),
               dim3(kStreamThreads), scope, p.weight, p.bias, to, n, pitch);
  p.weight = to;
  p.bias = to + int64_t{kShifts} * pitch;
  return out;
}

// Odd rows: as many threads as possible wait for parameters, but a residual needs the registers.
constexpr int direct_blocks(DirectKind kind, bool ragged, bool residual, int otherwise) {
  if (!ragged) return otherwise;
  if (kind == DirectKind::kLanes && residual) return 12;
  return kind == DirectKind::kBlock && !residual ? 5 : otherwise;
}

// Rows that threads hold straight from memory; false: not here.
template <bool kRms, class T, bool kRagged>
bool launch_direct(const NormTensors& t, NormForward<T, T>& p, const NormShape& shape,
                   const LaunchScope& scope) {
  const DirectPlan plan = plan_direct(shape.rows, shape.n, kChunkOf<T>, 4, scope);
  const auto aligned = [](const T* from) { return reinterpret_cast<uintptr_t>(from) % 16 == 0; };
  if (plan.kind == DirectKind::kNone || p.wide || !aligned(p.weight) || !aligned(p.bias)) {
    return false;
  }
  const int pitch = static_cast<int>(round_up(shape.n, kChunkOf<T>));
  dispatch(DirectKinds{}, plan.kind, [&]<DirectKind K>(Tag<K>) {
    using D = DirectOf<K>;
    Tensor parameters;
    if constexpr (D::kMax > 1) {
      const int n = static_cast<int>(shape.n);
      parameters = lay_out_parameters<T, kRagged>(t.x, p, !kRms, n, pitch, scope);
    }
    dispatch_bool(p.residual != nullptr, [&]<bool kResidual>(Tag<kResidual>) {
      constexpr int kBlocks = direct_blocks(K, kRagged, kResidual, D::kBlocks);
      constexpr auto kKernel = norm_direct_kernel<kRms, T, T, kResidual, D::kMax, kRagged, D::kLong,
                                                  typename D::Team, D::kThreads, kBlocks>;
      if (D::kLong) {
        allow_shared_memory<kKernel>(scope.device(),
                                     scope.facts().shared_memory_per_block - kDirectSlotBytes);
      }
      launch_rows(kKernel, plan.rows, scope, p, pitch, plan.rows.layout);
    });
  });
  return true;
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
  if constexpr (sizeof(T) == 2 && std::is_same_v<T, W>) {
    if (launch_direct<kRms, T, kRagged>(t, p, shape, scope)) return;
  }
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
