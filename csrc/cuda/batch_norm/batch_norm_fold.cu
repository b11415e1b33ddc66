// batch_norm_fold on CUDA.
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cuda/batch_norm/batch_norm_fold.cuh"
#include "csrc/cuda/batch_norm/batch_norm_host.h"

namespace fusedops::cuda {
namespace {

std::tuple<Tensor, Tensor> batch_norm_fold(const Tensor& weight_,                    // (O, K)
                                           const std::optional<Tensor>& conv_bias_,  // (O,)
                                           const std::optional<Tensor>& mean,        // (O,)
                                           const std::optional<Tensor>& var,         // (O,)
                                           const std::optional<Tensor>& bn_weight,   // (O,)
                                           const std::optional<Tensor>& bias,        // (O,)
                                           double eps) {
  constexpr const char* kOp = "batch_norm_fold";
  // Guard
  const LaunchScope scope(kOp, weight_);

  // Checks
  const NormVectors vectors{mean, var, bn_weight, bias};
  const DType dtype = check_batch_norm_fold(kOp, weight_, conv_bias_, vectors);

  // Allocate
  const int64_t outputs = weight_.size(0), inner = weight_.size(1);
  const Tensor folded = new_dense(weight_, {outputs, inner});
  const Tensor shift = new_dense(weight_, {outputs});

  // Empty early return
  if (outputs == 0) return {folded, shift};

  // Config
  const Tensor weight = dense(weight_);
  const std::optional<Tensor> conv_bias = dense(conv_bias_);
  const DenseNorm norm(vectors);
  const int vec = access_width(dtype, inner, {weight.const_data_ptr(), folded.const_data_ptr()});
  int lanes = 32;
  while (lanes < kWalkThreads && int64_t{lanes} * vec < inner) lanes *= 2;
  const FoldProblem problem{outputs,
                            inner,
                            lanes,
                            inner > 0 ? weight.const_data_ptr() : nullptr,
                            inner > 0 ? folded.mutable_data_ptr() : nullptr,
                            shift.mutable_data_ptr(),
                            DenseNorm::vector(conv_bias),
                            norm.arguments(eps)};

  // Launch
  const dim3 grid(static_cast<unsigned>(ceil_div(outputs, int64_t{kWalkThreads / lanes})));
  const bool overlap = scope.facts().code_version >= 90;
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    const auto kernel =
        vec > 1 ? batch_norm_fold_kernel<T, 16 / sizeof(T)> : batch_norm_fold_kernel<T, 1>;
    launch_kernel(kernel, grid, dim3(kWalkThreads), 0, scope.stream(), overlap, problem);
  });

  // Launch check
  check_launch(kOp);
  return {folded, shift};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("batch_norm_fold", FUSEDOPS_BOX(&batch_norm_fold));
}

}  // namespace fusedops::cuda
