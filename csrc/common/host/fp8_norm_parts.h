// _fp8_norm of two ops, a norm and the quantiser: for the CPU, and for what
// csrc/cuda/fp8/norm/fp8_norm.cuh does not take.
#pragma once

#include <tuple>

#include "csrc/common/checks/fp8_check.h"
#include "csrc/common/checks/row_check.h"
#include "csrc/common/host/aten.h"

namespace fusedops {

// (q, scale, q_t, scale_t, sum, mean, rstd)
using Fp8NormResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// What the op was asked for.
struct Fp8NormOptions {
  bool rms;
  double eps;
  int64_t format, rows, columns;  // as codes of fp8_quantize
  bool power_of_two;
};

inline QuantizeShape check_fp8_norm(const char* op, const Tensor& x,        // (M, K)
                                    const std::optional<Tensor>& residual,  // (M, K)
                                    const std::optional<Tensor>& weight,    // (K,)
                                    const std::optional<Tensor>& bias,      // (K,)
                                    const Fp8NormOptions& o) {
  const std::optional<Tensor> none;
  const QuantizeShape shape =
      check_fp8_quantize(op, x, none, none, 0, false, o.format, o.rows, o.columns);
  check_norm(op, x, residual, weight, bias, 1, false);
  FUSEDOPS_CHECK(!o.rms || !bias, op, ": bias must be None for an RMS norm; got a tensor");
  return shape;
}

namespace cpu {

// The results of an op that has several.
template <size_t kResults, typename... Args>
std::array<Tensor, kResults> call_for_many(const char* op, const Args&... args) {
  std::array<StableIValue, std::max(sizeof...(Args), kResults)> stack{
      torch::stable::detail::from(args)...};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(op, "", stack.data(), TORCH_ABI_VERSION));
  std::array<Tensor, kResults> results;
  for (size_t i = 0; i < kResults; ++i) results[i] = torch::stable::detail::to<Tensor>(stack[i]);
  return results;
}

inline Fp8NormResult compose_fp8_norm(const Tensor& x, const std::optional<Tensor>& residual,
                                      const std::optional<Tensor>& weight,
                                      const std::optional<Tensor>& bias, const Fp8NormOptions& o) {
  const std::optional<Tensor> none;
  const int64_t dims = 1, no_activation = 0;
  std::array<Tensor, 4> norm;  // y, sum, mean, rstd
  if (o.rms) {
    const auto found =
        call_for_many<3>("fusedops::rms_norm", x, residual, weight, dims, o.eps, false, true);
    norm = {found[0], found[1], new_dense(found[2], {0}), found[2]};
  } else {
    norm = call_for_many<4>("fusedops::layer_norm", x, residual, weight, bias, dims, o.eps, false,
                            true);
  }
  const auto q = call_for_many<5>("fusedops::fp8_quantize", norm[0], none, none, no_activation,
                                  false, o.format, o.rows, o.columns, o.power_of_two, false, false);
  return {q[0], q[1], q[2], q[3], norm[1], norm[2], norm[3]};
}

}  // namespace cpu
}  // namespace fusedops
