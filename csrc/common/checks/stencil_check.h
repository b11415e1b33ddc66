// The contract of stencil and its backward, checked once for CPU and CUDA.
#pragma once

#include "csrc/common/checks/tensor_check.h"
#include "csrc/common/stencil.h"

namespace fusedops {

inline StencilShape check_stencil(const char* op, const char* name,
                                  const Tensor& x,       // (..., [D,] [H,] W)
                                  const Tensor& weight,  // ([C,] [kd,] [kh,] kw)
                                  int64_t dims, int64_t padding) {
  check_floating(op, name, x);
  check_like(op, "weight", weight, name, x);
  FUSEDOPS_CHECK(dims >= 1 && dims <= 3, op, ": dims must be from 1 to 3; got ", dims);
  FUSEDOPS_CHECK(padding >= 0 && padding < kNumPaddings, op, ": padding must be a code from 0 to ",
                 kNumPaddings - 1, "; got ", padding);
  check_min_dim(op, name, x, dims);
  const bool per_channel = weight.dim() == dims + 1;
  FUSEDOPS_CHECK(weight.dim() == dims || per_channel, op, ": weight must have ", dims,
                 " dimension(s), or one more in front for channels; got shape ",
                 shape_string(weight));
  StencilShape shape;
  shape.padding = static_cast<Padding>(padding);
  if (per_channel) {
    FUSEDOPS_CHECK(x.dim() > dims && x.size(x.dim() - dims - 1) == weight.size(0), op,
                   ": weight must have as many channels as ", name, " ", shape_string(x), "; got ",
                   shape_string(weight));
    shape.groups = weight.size(0);
  }
  int64_t* const sizes[] = {&shape.d, &shape.h, &shape.w};
  int* const taps[] = {&shape.kd, &shape.kh, &shape.kw};
  for (int64_t i = 1; i <= dims; ++i) {
    const int64_t k = weight.size(weight.dim() - i), n = x.size(x.dim() - i);
    FUSEDOPS_CHECK(k % 2 == 1 && k <= kMaxTaps, op, ": weight must have odd extents from 1 to ",
                   kMaxTaps, "; got shape ", shape_string(weight));
    const bool fits = n == 0 || shape.padding == Padding::kZeros ||
                      shape.padding == Padding::kReplicate ||
                      k / 2 < n + (shape.padding == Padding::kCircular);
    FUSEDOPS_CHECK(fits, op, ": ", name, " ", shape_string(x), " must be larger than half of ",
                   "weight ", shape_string(weight), " for this padding; got an extent of ", n);
    FUSEDOPS_CHECK(n <= kMaxExtent, op, ": ", name, " ", shape_string(x),
                   " must have spatial extents of at most 2^30; got ", n);
    *sizes[3 - i] = n;
    *taps[3 - i] = static_cast<int>(k);
  }
  shape.planes = 1;
  for (int64_t i = 0; i < x.dim() - dims; ++i) shape.planes *= x.size(i);
  return shape;
}

inline StencilShape check_stencil_backward(const char* op,
                                           const Tensor& dy,      // (..., [D,] [H,] W)
                                           const Tensor& x,       // (..., [D,] [H,] W)
                                           const Tensor& weight,  // ([C,] [kd,] [kh,] kw)
                                           int64_t dims, int64_t padding) {
  const StencilShape shape = check_stencil(op, "dy", dy, weight, dims, padding);
  check_like(op, "x", x, "dy", dy);
  check_same_shape(op, "x", x, "dy", dy);
  return shape;
}

}  // namespace fusedops
