#include <algorithm>

#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/pdl.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cutlass/passes/loss_rows.cuh"
#include "csrc/cutlass/passes/loss_rows.h"

namespace fusedops {
namespace {

const char* reason_of(cudaError_t status) {
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

template <class... Params, class... Args>
cudaError_t launch(void (*kernel)(Params...), int64_t blocks, int64_t threads,
                   const LaunchContext& context, Args&&... args) {
  const int64_t whole = std::clamp<int64_t>(round_up(threads, int64_t{32}), 32, kLossThreads);
  return launch_kernel(
      kernel, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(whole)), 0,
      static_cast<cudaStream_t>(context.stream), context.overlap, std::forward<Args>(args)...);
}

template <class T>
LossRows<T> operands(const LossRowsProblem& p) {
  using C = Compute<T>;
  return {static_cast<T*>(p.logits),
          p.target,
          static_cast<LossSum*>(p.sums),
          static_cast<C*>(p.losses),
          static_cast<const C*>(p.factor),
          p.factor_per_row,
          p.options.ignore_index,
          static_cast<int>(p.n),
          static_cast<int>(p.pitch),
          static_cast<C>(p.options.label_smoothing),
          static_cast<C>(p.options.softcap),
          static_cast<C>(p.options.z_loss),
          p.first,
          p.classes,
          static_cast<LogitPart<C>*>(p.parts),
          static_cast<const C*>(p.lse)};
}

// fn(a dtype, whether logits are capped, a block's threads).
template <class Fn>
const char* each_row(const LossRowsProblem& p, Fn fn) {
  return reason_of(dispatch_dtype(p.dtype, [&]<DType D>(Tag<D> dtype) {
    const int64_t threads = ceil_div(p.n, int64_t{kChunkOf<DeviceType<D>> * kRowChunks});
    return dispatch_bool(p.options.softcap != 0,
                         [&]<bool kCap>(Tag<kCap> capped) { return fn(dtype, capped, threads); });
  }));
}

}  // namespace

int64_t loss_sum_bytes() { return sizeof(LossSum); }

const char* loss_rows(const LossRowsProblem& p, const LaunchContext& context) {
  return each_row(p, [&]<DType D, bool kCap>(Tag<D>, Tag<kCap>, int64_t threads) {
    using T = DeviceType<D>;
    return launch(loss_rows_kernel<T, kCap>, p.rows, threads, context, operands<T>(p));
  });
}

const char* loss_parts(const LossRowsProblem& p, bool smooth, const LaunchContext& context) {
  return each_row(p, [&]<DType D, bool kCap>(Tag<D>, Tag<kCap>, int64_t threads) {
    using T = DeviceType<D>;
    return launch(loss_parts_kernel<T, kCap>, p.rows, threads, context, operands<T>(p), smooth);
  });
}

const char* loss_gradient(const LossRowsProblem& p, const LaunchContext& context) {
  return each_row(p, [&]<DType D, bool kCap>(Tag<D>, Tag<kCap>, int64_t threads) {
    using T = DeviceType<D>;
    return launch(loss_gradient_kernel<T, kCap>, p.rows, threads, context, operands<T>(p));
  });
}

const char* sum_losses(DType dtype, const void* sums, int64_t rows, bool mean, void* loss,
                       const LaunchContext& context) {
  return reason_of(dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using C = Compute<DeviceType<D>>;
    return launch(cross_entropy_sum_kernel<C, C>, 1, rows, context,
                  static_cast<const LossSum*>(sums), rows,
                  LossOut<C, C>{static_cast<C*>(loss), nullptr, mean});
  }));
}

const char* loss_factors(DType dtype, const LossFactors& p, const LaunchContext& context) {
  return reason_of(dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using C = Compute<DeviceType<D>>;
    return launch(loss_factors_kernel<C>, 1, p.rows, context, p.target, p.rows, p.ignore_index,
                  p.mean, p.later, static_cast<const C*>(p.dloss), static_cast<C*>(p.factor),
                  static_cast<C*>(p.scale));
  }));
}

}  // namespace fusedops
