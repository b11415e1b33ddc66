// What the CPU and CUDA side of every op share about torch::stable::Tensor. Checks: a message names
// op, argument, what was expected and what came; its text is only built on failure. Contiguous
// tensors, new ones and those of users.
#pragma once

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "csrc/common/dtype.h"

namespace fusedops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Sizes = torch::headeronly::IntHeaderOnlyArrayRef;

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw std::runtime_error(message.str());
}

// NOTE: STD_TORCH_CHECK without its "function, file:line" prefix, so that a user reads the error
// only.
#define FUSEDOPS_CHECK(condition, ...) \
  do {                                 \
    if (!(condition)) [[unlikely]]     \
      ::fusedops::fail(__VA_ARGS__);   \
  } while (false)

// "(2, 3)"
inline std::string shape_string(const Tensor& tensor) {
  std::ostringstream text;
  text << '(';
  const auto sizes = tensor.sizes();
  for (size_t i = 0; i < sizes.size(); ++i) text << (i ? ", " : "") << sizes[i];
  text << (sizes.size() == 1 ? ",)" : ")");
  return text.str();
}

inline const char* dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Half: return "float16";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Float: return "float32";
    case ScalarType::Double: return "float64";
    case ScalarType::Byte: return "uint8";
    case ScalarType::Char: return "int8";
    case ScalarType::Short: return "int16";
    case ScalarType::Int: return "int32";
    case ScalarType::Long: return "int64";
    case ScalarType::Bool: return "bool";
    case ScalarType::Float8_e4m3fn: return "float8_e4m3fn";
    case ScalarType::Float8_e5m2: return "float8_e5m2";
    case ScalarType::ComplexFloat: return "complex64";
    case ScalarType::ComplexDouble: return "complex128";
    default: return "a dtype that fusedops does not know";
  }
}

inline std::string device_string(const Tensor& tensor) {
  if (tensor.is_cpu()) return "cpu";
  const std::string index = std::to_string(tensor.get_device_index());
  return (tensor.is_cuda() ? "cuda:" : "device:") + index;
}

inline bool same_device(const Tensor& a, const Tensor& b) {
  return a.is_cpu() ? b.is_cpu()
                    : a.is_cuda() == b.is_cuda() && !b.is_cpu() &&
                          a.get_device_index() == b.get_device_index();
}

constexpr ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return ScalarType::Half;
    case DType::kBFloat16: return ScalarType::BFloat16;
    case DType::kFloat32: return ScalarType::Float;
    default: return ScalarType::Double;
  }
}

// The type that sums and products of x are made in.
inline ScalarType wide_dtype(const Tensor& x) {
  return x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

// fp16, bf16, fp32 or fp64; anything else is an error.
inline DType check_floating(const char* op, const char* name, const Tensor& tensor) {
  const ScalarType type = tensor.scalar_type();
  switch (type) {
    case ScalarType::Half: return DType::kFloat16;
    case ScalarType::BFloat16: return DType::kBFloat16;
    case ScalarType::Float: return DType::kFloat32;
    case ScalarType::Double: return DType::kFloat64;
    default:
      fail(op, ": ", name, " must be float16, bfloat16, float32 or float64; got ",
           dtype_name(type));
  }
}

inline void check_min_dim(const char* op, const char* name, const Tensor& tensor, int64_t dim) {
  FUSEDOPS_CHECK(tensor.dim() >= dim, op, ": ", name, " must have at least ", dim,
                 " dimension(s); got shape ", shape_string(tensor));
}

// `layout` spells the dimensions, for example "(N, K)".
inline void check_dim(const char* op, const char* name, const Tensor& tensor, int64_t dim,
                      const char* layout) {
  FUSEDOPS_CHECK(tensor.dim() == dim, op, ": ", name, " must be ", dim, "-dimensional, ", layout,
                 "; got shape ", shape_string(tensor));
}

// `tensor` shares device and dtype with `like`.
inline void check_like(const char* op, const char* name, const Tensor& tensor,
                       const char* like_name, const Tensor& like) {
  FUSEDOPS_CHECK(same_device(tensor, like), op, ": ", name, " must be on ", device_string(like),
                 " like ", like_name, "; got ", device_string(tensor));
  FUSEDOPS_CHECK(tensor.scalar_type() == like.scalar_type(), op, ": ", name, " must have dtype ",
                 dtype_name(like.scalar_type()), " like ", like_name, "; got ",
                 dtype_name(tensor.scalar_type()));
}

inline bool same_shape(const Tensor& a, const Tensor& b) {
  const auto sizes_a = a.sizes();
  const auto sizes_b = b.sizes();
  if (sizes_a.size() != sizes_b.size()) return false;
  for (size_t i = 0; i < sizes_a.size(); ++i) {
    if (sizes_a[i] != sizes_b[i]) return false;
  }
  return true;
}

inline void check_same_shape(const char* op, const char* name, const Tensor& tensor,
                             const char* like_name, const Tensor& like) {
  FUSEDOPS_CHECK(same_shape(tensor, like), op, ": ", name, " must have shape ", shape_string(like),
                 " like ", like_name, "; got ", shape_string(tensor));
}

// The product of all sizes but the last.
inline int64_t leading_numel(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  int64_t count = 1;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) count *= sizes[i];
  return count;
}

inline std::vector<int64_t> shape_of(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return {sizes.begin(), sizes.end()};
}

// ---- contiguous tensors ----

// NOTE: torch::stable's new_empty and contiguous look their operator up by its name at each call,
// which takes most of a microsecond.

// A new tensor on like's device, whose values are not set.
inline Tensor new_dense(const Tensor& like, Sizes sizes, ScalarType dtype) {
  auto type = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  AtenTensorHandle out = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_aten_new_empty(like.get(), sizes.data(), sizes.size(), &type,
                                                   nullptr, nullptr, 0, nullptr, &out));
  return Tensor(out);
}

inline Tensor new_dense(const Tensor& like, Sizes sizes) {
  return new_dense(like, sizes, like.scalar_type());
}

// The tensor, or a contiguous copy of it.
inline Tensor dense(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}
inline std::optional<Tensor> dense(const std::optional<Tensor>& tensor) {
  if (!tensor) return std::nullopt;
  return dense(*tensor);
}

}  // namespace fusedops
