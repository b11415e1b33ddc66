// What linear, mlp and gated_mlp are composed of: views, bias, activation gradient, weight
// gradient.
#pragma once

#include <optional>

#include "csrc/common/checks/linear_check.h"
#include "csrc/cutlass/launch/gemm_launch.h"

namespace fusedops {

// An empty tensor with the leading dimensions of x (..., K) -> (..., n).
Tensor empty_like_rows(const Tensor& x, int64_t n);

MatrixView matrix_view(const Tensor& matrix);

// Rows whose elements are contiguous, copied when they are not.
MatrixView dense_rows(const Tensor& tensor, Tensor& holder);

// A bias that kernels can read in 16-byte accesses.
const Tensor* readable_bias(const std::optional<Tensor>& bias, Tensor& holder);

// y = act(a @ b + bias), and z = a @ b + bias where z is not null.
void run_linear(const GemmCall& call, const std::optional<Tensor>& bias, const Tensor& y,
                const Tensor* z, const LaunchScope& scope);

// a @ b + bias + added, in y or in a new tensor like it.
Tensor run_linear_added(const GemmCall& call, const std::optional<Tensor>& bias,
                        const Tensor& added, const Tensor& y, const LaunchScope& scope);

// dz (null: not wanted) and dbias (null: not wanted) from dy and what forward saved. dz may be dy.
void run_act_backward(const char* op, const MatrixView& dy, const std::optional<Tensor>& saved,
                      const LinearShape& shape, const Tensor* dz, const Tensor* dbias,
                      const LaunchScope& scope);

// The product dweight = dz.T @ x, into fp32 or the call's dtype.
GemmCall wgrad_call(const GemmCall& call, const MatrixView& dz, const MatrixView& x, bool fp32);

// dweight (N, K) = dz.T @ x for dz (M, N) and x (M, K), in the call's dtype or in fp32; added to
// what dweight holds where the call accumulates. The call says the rest.
void run_wgrad(const GemmCall& call, const MatrixView& dz, const MatrixView& x,
               const Tensor& dweight, const LaunchScope& scope);

// The a of a call, a gradient, for its products: itself, or, where one of them would copy it but
// reads a copy of addressable_rows in place, that one for both. `own`: the call's product is
// wanted. x: of the weight gradient (in fp32), or null.
MatrixView gradient_rows(const GemmCall& call, bool own, const MatrixView* x, bool fp32,
                         Tensor& holder, const LaunchScope& scope);

// a + b in a new tensor.
Tensor sum(const Tensor& a, const Tensor& b);

}  // namespace fusedops
