// What the FP8 ops share on CUDA's host side: readable inputs, and the tensors that come out.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <optional>

#include "csrc/common/checks/fp8_check.h"
#include "csrc/cuda/fp8/fp8_quantize.h"

namespace fusedops::cuda {

// A tensor of fp32 where it was one of fp64, with rows that are contiguous.
inline Tensor readable(const Tensor& x) {
  Tensor given = x;
  if (x.scalar_type() == ScalarType::Double) given = torch::stable::to(x, ScalarType::Float);
  const bool rows = given.stride(1) == 1 && (given.stride(0) >= given.size(1));
  return rows ? given : dense(given);
}
inline std::optional<Tensor> readable(const std::optional<Tensor>& x) {
  return x ? std::optional<Tensor>(readable(*x)) : std::nullopt;
}

inline bool takes_vectors(const Tensor& x, DType dtype) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0 &&
         x.stride(0) * dtype_bytes(dtype) % 16 == 0;
}

// One orientation: its tensors, and where the kernel finds them.
struct Side {
  Tensor q, scale, maxima;
  Fp8Side side;
};

inline Side allocate_side(const Tensor& x, Fp8Scaling scaling, Fp8Format format, int64_t rows,
                          int64_t columns) {
  Side made;
  const bool wanted = scaling != Fp8Scaling::kNone;
  const Fp8ScaleShape shape = scale_shape(scaling, rows, columns);
  made.side.scaling = scaling;
  made.side.pitch = made.side.width = wanted ? round_up(columns, kFp8Columns) : 0;
  made.side.scale_pitch = made.side.scale_lines = shape.columns;
  made.q = new_dense(x, {wanted ? rows : 0, made.side.pitch}, scalar_type_of(format));
  made.scale = new_dense(x, {shape.rows, shape.columns}, ScalarType::Float);
  made.side.q = static_cast<uint8_t*>(made.q.mutable_data_ptr());
  made.side.scale = static_cast<float*>(made.scale.mutable_data_ptr());
  if (wanted && !scales_blocks(scaling)) {
    made.maxima = new_dense(x, {shape.rows}, ScalarType::Int);
    made.maxima = torch::stable::zero_(made.maxima);
    made.side.maxima = static_cast<uint32_t*>(made.maxima.mutable_data_ptr());
  }
  return made;
}

}  // namespace fusedops::cuda
