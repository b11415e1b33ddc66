// What mlp and gated_mlp share on the CPU.
#pragma once

#include <vector>

#include "csrc/common/checks/mlp_check.h"
#include "csrc/common/host/aten.h"
#include "csrc/cpu/activation.h"

namespace fusedops::cpu {

// (rows, C) -> (..., C) with the leading dimensions of x.
inline Tensor like_rows(const Tensor& matrix, const Tensor& x) {
  const auto sizes = x.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = matrix.size(1);
  return result_of_shape(matrix, shape);
}

inline Tensor add(const Tensor& a, const Tensor& b) {
  return torch::stable::subtract(a, b, -1.0);  // the stable ABI has no add
}

// h @ weight.T + bias + residual with the leading dimensions of x.
inline Tensor down(const Tensor& h,                        // (M, H)
                   const Tensor& weight,                   // (N, H)
                   const std::optional<Tensor>& bias,      // (N,)
                   const std::optional<Tensor>& residual,  // (..., N)
                   const Tensor& x) {                      // (..., K)
  // NOTE: rounded once, after the residual.
  const ScalarType dtype = residual ? wide_dtype(x) : x.scalar_type();
  const Tensor y = like_rows(dense(aten_linear(h, weight, bias, dtype)), x);
  return residual ? dense(to_dtype(add(y, *residual), x.scalar_type())) : y;
}

// a @ b in fp32 (fp64), not rounded yet.
inline Tensor wide_product(const Tensor& a,    // (M, K)
                           const Tensor& b) {  // (K, N)
  return dense(aten_mm(to_dtype(a, wide_dtype(a)), to_dtype(b, wide_dtype(b))));
}

// dz.T @ x, formed in dtype.
inline Tensor weight_gradient(const Tensor& dz,  // (M, N)
                              const Tensor& x,   // (M, K)
                              ScalarType dtype) {
  return dense(aten_mm(transposed(to_dtype(dz, dtype)), to_dtype(x, dtype)));
}

// dweight into main_grad.
inline void deliver(const Tensor& dweight, const Tensor& main_grad, bool accumulate) {
  Tensor target = main_grad;
  torch::stable::copy_(target, accumulate ? add(main_grad, dweight) : dweight);
}

}  // namespace fusedops::cpu
