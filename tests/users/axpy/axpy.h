// What the CPU and the CUDA side of axpy share.
#pragma once

#include "csrc/common/checks/tensor_check.h"

namespace axpy {

inline fusedops::DType check_axpy(const fusedops::Tensor& x, const fusedops::Tensor& y) {
  fusedops::check_like("axpy", "y", y, "x", x);
  fusedops::check_same_shape("axpy", "y", y, "x", x);
  return fusedops::check_floating("axpy", "x", x);
}

}  // namespace axpy
