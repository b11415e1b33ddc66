// The few ATen ops the CPU side stands on, called through the stable dispatcher.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "csrc/common/checks/tensor_check.h"

namespace fusedops::cpu {

// Grad mode off for the scope: our ops are silent about autograd, so the ATen ops inside them must
// not record either.
class NoGradGuard {
 public:
  NoGradGuard() : previous_(aoti_torch_grad_mode_is_enabled()) {
    aoti_torch_grad_mode_set_enabled(false);
  }
  ~NoGradGuard() { aoti_torch_grad_mode_set_enabled(previous_); }
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;

 private:
  bool previous_;
};

template <typename... Args>
Tensor call(const char* op, const char* overload, const Args&... args) {
  std::array<StableIValue, sizeof...(Args)> stack{torch::stable::detail::from(args)...};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(op, overload, stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

inline Tensor to_dtype(const Tensor& tensor, ScalarType dtype) {
  return tensor.scalar_type() == dtype ? tensor : torch::stable::to(tensor, dtype);
}

// A new tensor, whatever the dtype.
inline Tensor copy_as(const Tensor& tensor, ScalarType dtype) {
  return torch::stable::to(tensor, dtype, std::nullopt, std::nullopt, std::nullopt, false, true);
}

// NOTE: the out variants, because autocast leaves them alone: a backward that runs inside an
// autocast region keeps its dtypes.

// x @ weight.T + bias, formed in dtype.
inline Tensor aten_linear(const Tensor& x,                    // (M, K)
                          const Tensor& weight,               // (N, K)
                          const std::optional<Tensor>& bias,  // (N,)
                          ScalarType dtype) {
  const Tensor out = torch::stable::empty({x.size(0), weight.size(0)}, dtype);
  std::optional<Tensor> added;
  if (bias) added = to_dtype(*bias, dtype);
  return call("aten::linear", "out", to_dtype(x, dtype), to_dtype(weight, dtype), added, out);
}

inline Tensor aten_mm(const Tensor& a,    // (M, K)
                      const Tensor& b) {  // (K, N)
  const Tensor out = torch::stable::empty({a.size(0), b.size(1)}, a.scalar_type());
  return call("aten::mm", "out", a, b, out);
}

inline Tensor transposed(const Tensor& matrix) { return torch::stable::transpose(matrix, 0, 1); }

// (..., C) -> (rows, C); a view where possible.
inline Tensor as_matrix(const Tensor& tensor, int64_t rows, int64_t columns) {
  if (tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == columns) return tensor;
  return torch::stable::reshape(tensor, {rows, columns});
}

// An op's result, which is no input of it, in its shape. NOTE: autograd takes a view for one of a
// user's tensors and refuses to let it be written in place.
inline Tensor result_of_shape(const Tensor& contiguous, Sizes sizes) {
  const auto given = contiguous.sizes();
  if (std::equal(given.begin(), given.end(), sizes.begin(), sizes.end())) return contiguous;
  return call("aten::_unsafe_view", "", contiguous,
              std::vector<int64_t>(sizes.begin(), sizes.end()));
}

// (M, N) -> (N,): sums in fp32 or fp64, rounded once to dtype.
// NOTE: ATen casts the terms, not their sum, to the dtype that it is asked for.
inline Tensor sum_rows(const Tensor& matrix, ScalarType dtype) {
  const int64_t rows = 0;
  const Sizes dims(&rows, 1);
  return to_dtype(torch::stable::sum(matrix, dims, false, wide_dtype(matrix)), dtype);
}

}  // namespace fusedops::cpu
