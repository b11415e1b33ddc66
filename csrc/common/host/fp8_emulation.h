// An FP8 product by ATen, for devices whose Tensor Cores have none: both operands in fp32, where
// products of e4m3 and e5m2 are exact, and `linear` without TF32.
#pragma once

#include "csrc/common/checks/fp8_check.h"
#include "csrc/common/host/aten.h"

namespace fusedops::cpu {

// Each entry for `count` of its neighbours along dim, `size` in all.
inline Tensor spread(const Tensor& tensor, int64_t count, int64_t dim, int64_t size) {
  Tensor repeated = call("aten::repeat_interleave", "self_int", tensor, count,
                         std::optional<int64_t>(dim), std::optional<int64_t>());
  return torch::stable::narrow(repeated, dim, 0, size);
}

// q * scale in fp32.
inline Tensor dequantized(const Tensor& q,      // (rows, K)
                          const Tensor& scale,  // as _fp8_matmul takes it
                          Fp8Scaling scaling) {
  Tensor of_elements = scale;
  if (scaling == Fp8Scaling::kTile) of_elements = spread(of_elements, kFp8Block, 0, q.size(0));
  if (scales_blocks(scaling)) of_elements = spread(of_elements, kFp8Block, 1, q.size(1));
  return call("aten::mul", "Tensor", torch::stable::to(q, ScalarType::Float), of_elements);
}

inline Tensor emulate_fp8_matmul(const Tensor& a,  // (M, K)
                                 const Tensor& b,  // (N, K)
                                 const Tensor& scale_a, const Tensor& scale_b,
                                 const std::optional<Tensor>& bias,  // (N,)
                                 const Fp8MatmulShape& shape) {
  std::optional<Tensor> added;
  if (bias) added = to_dtype(*bias, ScalarType::Float);
  const Tensor y = call("fusedops::linear", "", dequantized(a, scale_a, shape.scaling_a),
                        dequantized(b, scale_b, shape.scaling_b), added,
                        static_cast<int64_t>(shape.activation), false);
  return to_dtype(y, scalar_type_of(shape.out_dtype));
}

}  // namespace fusedops::cpu
