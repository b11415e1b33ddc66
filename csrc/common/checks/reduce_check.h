// The contract of the reductions, checked once for CPU and CUDA.
#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "csrc/common/checks/element_check.h"
#include "csrc/common/checks/tensor_check.h"
#include "csrc/common/reduce_gradient.h"
#include "csrc/common/reduction.h"

namespace fusedops {

// What a call reduces, and what comes out.
struct ReduceShape {
  Reduction reduction;
  Element element;
  std::vector<bool> reduced;        // per dimension
  std::vector<int64_t> sizes;       // of the result, with keepdim applied
  std::vector<int64_t> kept_sizes;  // of the result, with keepdim
  int64_t count = 1;                // elements per result
  int64_t outputs = 1;
  ScalarType dtype;  // of the result
};

inline Element check_reduced(const char* op, const Tensor& x, bool floating_only) {
  const std::optional<Element> element = find_element(x.scalar_type());
  FUSEDOPS_CHECK(!floating_only || (element && is_floating(*element)), op,
                 ": x must be float16, bfloat16, float32 or float64; got ",
                 dtype_name(x.scalar_type()));
  FUSEDOPS_CHECK(
      element.has_value(), op,
      ": x must be float16, bfloat16, float32, float64, uint8, int8, int16, int32, int64 "
      "or bool; got ",
      dtype_name(x.scalar_type()));
  return *element;
}

inline ScalarType result_dtype(Reduction reduction, Element element, const Tensor& x, bool wide) {
  switch (reduction) {
    case Reduction::kAny:
    case Reduction::kAll: return ScalarType::Bool;
    case Reduction::kArgmax:
    case Reduction::kArgmin:
    case Reduction::kCountNonzero: return ScalarType::Long;
    default: break;
  }
  if (is_floating(element)) return wide ? wide_dtype(x) : x.scalar_type();
  const bool extremum = reduction == Reduction::kAmax || reduction == Reduction::kAmin;
  return extremum ? x.scalar_type() : ScalarType::Long;
}

inline Reduction check_reduction(const char* op, int64_t reduction) {
  FUSEDOPS_CHECK(reduction >= 0 && reduction < kNumReductions, op,
                 ": reduction must be a code from 0 to ", kNumReductions - 1, "; got ", reduction);
  return static_cast<Reduction>(reduction);
}

// dims: bit i asks for dimension i.
inline ReduceShape check_reduce(const char* op, const Tensor& x, Reduction reduction, int64_t dims,
                                bool keepdim, bool wide) {
  ReduceShape shape;
  shape.reduction = reduction;
  shape.element = check_reduced(op, x, is_floating_only(reduction));
  const int64_t ndim = x.dim();
  FUSEDOPS_CHECK(dims >= 0 && (ndim > 62 || dims < int64_t{1} << ndim), op,
                 ": dims must be a bit mask of the ", ndim, " dimension(s) of x; got ", dims);
  const auto sizes = x.sizes();
  for (int64_t i = 0; i < ndim; ++i) {
    const bool reduced = dims >> i & 1;
    shape.reduced.push_back(reduced);
    (reduced ? shape.count : shape.outputs) *= sizes[i];
    if (!reduced || keepdim) shape.sizes.push_back(reduced ? 1 : sizes[i]);
    shape.kept_sizes.push_back(reduced ? 1 : sizes[i]);
  }
  FUSEDOPS_CHECK(shape.count > 0 || !needs_elements(reduction), op,
                 ": x must have at least one element along the reduced dimensions; got shape ",
                 shape_string(x));
  shape.dtype = result_dtype(reduction, shape.element, x, wide);
  return shape;
}

// amax, amin and the infinity norms: those whose gradient needs a count of the largest elements.
inline Reduction check_extremum(const Tensor& x, int64_t reduction) {
  const Reduction checked = check_reduction("extremum_count", reduction);
  FUSEDOPS_CHECK(needs_elements(checked) && !is_arg(checked),
                 "extremum_count: reduction must be amax, amin or an infinity norm; got ",
                 kReductionNames[reduction]);
  check_floating("extremum_count", "x", x);
  return checked;
}

// The result over no element.
inline double empty_value(Reduction reduction) {
  switch (reduction) {
    case Reduction::kMean: return std::numeric_limits<double>::quiet_NaN();
    case Reduction::kLogsumexp: return -std::numeric_limits<double>::infinity();
    case Reduction::kProd:
    case Reduction::kProdNonzero:
    case Reduction::kAll: return 1;
    default: return 0;
  }
}

// 1 / (count - correction), as torch: infinity where nothing is left.
inline double variance_scale(int64_t count, double correction) {
  return 1 / std::fmax(0.0, static_cast<double>(count) - correction);
}

inline void check_coefficient(const char* name, const Tensor& tensor, const Tensor& x) {
  const char* op = "reduce_backward";
  FUSEDOPS_CHECK(same_device(tensor, x), op, ": ", name, " must be on ", device_string(x),
                 " like x; got ", device_string(tensor));
  FUSEDOPS_CHECK(tensor.scalar_type() == wide_dtype(x), op, ": ", name, " must have dtype ",
                 dtype_name(wide_dtype(x)), " for x of ", dtype_name(x.scalar_type()), "; got ",
                 dtype_name(tensor.scalar_type()));
  bool fits = tensor.dim() == x.dim();
  const auto sizes = x.sizes(), own = tensor.sizes();
  for (size_t i = 0; fits && i < sizes.size(); ++i) fits = own[i] == sizes[i] || own[i] == 1;
  FUSEDOPS_CHECK(fits, op, ": ", name, " must have the shape of x ", shape_string(x),
                 " or 1 in each dimension; got ", shape_string(tensor));
}

inline ReduceGradient check_reduce_backward(const Tensor& x, const Tensor& scale,
                                            const std::optional<Tensor>& shift, int64_t gradient) {
  FUSEDOPS_CHECK(gradient >= 0 && gradient < kNumReduceGradients,
                 "reduce_backward: gradient must be a code from 0 to ", kNumReduceGradients - 1,
                 "; got ", gradient);
  check_floating("reduce_backward", "x", x);
  check_coefficient("scale", scale, x);
  if (shift) {
    check_coefficient("shift", *shift, x);
    check_same_shape("reduce_backward", "shift", *shift, "scale", scale);
  }
  const auto code = static_cast<ReduceGradient>(gradient);
  const bool optional = code == ReduceGradient::kAffine || code == ReduceGradient::kSign;
  FUSEDOPS_CHECK(shift.has_value() || optional,
                 "reduce_backward: shift must be given for gradient code ", gradient, "; got None");
  return code;
}

}  // namespace fusedops
