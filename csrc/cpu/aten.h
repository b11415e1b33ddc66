// The few ATen ops the CPU side stands on, called through the stable dispatcher.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace fusedops::cpu {

using torch::stable::Tensor;

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

// NOTE: the out variants, because autocast leaves them alone: a backward that runs inside an
// autocast region keeps its dtypes.

// x @ weight.T + bias
inline Tensor aten_linear(const Tensor& x,                      // (M, K)
                          const Tensor& weight,                 // (N, K)
                          const std::optional<Tensor>& bias) {  // (N,)
  const Tensor out = torch::stable::empty({x.size(0), weight.size(0)}, x.scalar_type());
  return call("aten::linear", "out", x, weight, bias, out);
}

inline Tensor aten_mm(const Tensor& a,    // (M, K)
                      const Tensor& b) {  // (K, N)
  const Tensor out = torch::stable::empty({a.size(0), b.size(1)}, a.scalar_type());
  return call("aten::mm", "out", a, b, out);
}

inline Tensor transposed(const Tensor& matrix) { return torch::stable::transpose(matrix, 0, 1); }

// (..., C) -> (rows, C); a view where possible.
inline Tensor as_matrix(const Tensor& tensor, int64_t rows, int64_t columns) {
  return torch::stable::reshape(tensor, {rows, columns});
}

// An op's result in its shape. NOTE: autograd takes a view for one of a user's tensors and refuses
// to let it be written in place.
inline Tensor result_of_shape(const Tensor& contiguous,
                              torch::headeronly::IntHeaderOnlyArrayRef sizes) {
  return call("aten::_unsafe_view", "", contiguous,
              std::vector<int64_t>(sizes.begin(), sizes.end()));
}

// (M, N) -> (N,): sums in fp32 or fp64, rounded once to dtype.
inline Tensor sum_rows(const Tensor& matrix, torch::headeronly::ScalarType dtype) {
  const int64_t rows = 0;
  return torch::stable::sum(matrix, torch::headeronly::IntHeaderOnlyArrayRef(&rows, 1), false,
                            dtype);
}

}  // namespace fusedops::cpu
