// edge_rows_fold on CUDA.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/points/edge_rows/row_walk.cuh"
#include "csrc/cuda/points/edges/edge_check.h"
#include "csrc/cuda/points/edges/edge_tensors.h"

namespace fusedops::cuda {
namespace {

template <class T>
struct RowFold {
  const T* weight;  // (rows, columns)
  const float *gamma, *beta, *shift, *mean, *var;
  T *to_weight, *to_bias;
  int rows, columns;
  float eps;
};

// A block has a row of the weight.
template <class T>
__global__ void __launch_bounds__(128) edge_rows_fold_kernel(const __grid_constant__ RowFold<T> p) {
  const int row = static_cast<int>(blockIdx.x);
  const float sigma = p.var ? sqrtf(p.var[row] + p.eps) : 1.f;
  const float scale = (p.gamma ? p.gamma[row] : 1.f) / sigma;
  if (threadIdx.x == 0) {
    const float away = (p.shift ? p.shift[row] : 0.f) - (p.mean ? p.mean[row] : 0.f);
    p.to_bias[row] = from_compute<T>(away * scale + (p.beta ? p.beta[row] : 0.f));
  }
  const int64_t first = int64_t{row} * p.columns;
  for (int c = static_cast<int>(threadIdx.x); c < p.columns; c += 128)
    p.to_weight[first + c] = from_compute<T>(to_compute(p.weight[first + c]) * scale);
}

std::tuple<Tensor, Tensor> edge_rows_fold(const Tensor& weight_, const OptionalTensor& gamma_,
                                          const OptionalTensor& beta_, const OptionalTensor& shift_,
                                          const OptionalTensor& mean_, const OptionalTensor& var_,
                                          double eps) {
  constexpr const char* kOp = "edge_rows_fold";
  // Guard
  const LaunchScope scope(kOp, weight_);

  // Checks
  check_dim(kOp, "weight", weight_, 2, "(O, K)");
  const int64_t rows = weight_.size(0), columns = weight_.size(1);
  FUSEDOPS_CHECK(rows <= INT32_MAX && columns <= INT32_MAX, kOp,
                 ": weight must have up to 2^31 - 1 rows and columns; got ", shape_string(weight_));
  const Tensor weight =
      *check_edge_tensor(kOp, "weight", weight_, weight_, weight_.scalar_type(), {rows, columns});
  const auto vector = [&](const char* name, const OptionalTensor& tensor) {
    return check_edge_tensor(kOp, name, tensor, weight_, ScalarType::Float, {rows});
  };
  const OptionalTensor gamma = vector("gamma", gamma_), beta = vector("beta", beta_);
  const OptionalTensor shift = vector("shift", shift_), mean = vector("mean", mean_);
  const OptionalTensor var = vector("var", var_);

  // Allocate
  const Tensor to_weight = new_dense(weight, {rows, columns});
  const Tensor to_bias = new_dense(weight, {rows});

  // Empty early return
  if (rows == 0) return {to_weight, to_bias};

  // Launch
  dispatch_like(kOp, "weight", weight, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    const RowFold<T> p{.weight = static_cast<const T*>(weight.const_data_ptr()),
                       .gamma = read<float>(gamma),
                       .beta = read<float>(beta),
                       .shift = read<float>(shift),
                       .mean = read<float>(mean),
                       .var = read<float>(var),
                       .to_weight = write<T>(to_weight),
                       .to_bias = write<T>(to_bias),
                       .rows = static_cast<int>(rows),
                       .columns = static_cast<int>(columns),
                       .eps = static_cast<float>(eps)};
    edge_rows_fold_kernel<T><<<dim3(p.rows), dim3(128), 0, scope.stream()>>>(p);
  });

  // Launch check
  check_launch(kOp);
  return {to_weight, to_bias};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("edge_rows_fold", FUSEDOPS_BOX(&edge_rows_fold));
}

}  // namespace fusedops::cuda
