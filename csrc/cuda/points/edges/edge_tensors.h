// How the ops of an edge MLP reach into tensors.
#pragma once

#include <optional>
#include <utility>

#include "csrc/common/checks/tensor_check.h"
#include "csrc/common/dispatch.h"

namespace fusedops::cuda {

using OptionalTensor = std::optional<Tensor>;

template <class V>
const V* read(const OptionalTensor& tensor) {
  return tensor ? static_cast<const V*>(tensor->const_data_ptr()) : nullptr;
}

template <class V>
V* write(const Tensor& tensor) {
  return static_cast<V*>(tensor.mutable_data_ptr());
}

template <class Fn>
auto dispatch_half(DType dtype, Fn&& fn) {
  return dispatch(Choices<DType::kFloat16, DType::kBFloat16>{}, dtype, std::forward<Fn>(fn));
}

// Calls fn with the 16-bit dtype of a tensor.
template <class Fn>
void dispatch_like(const char* op, const char* name, const Tensor& like, Fn&& fn) {
  const DType dtype = check_floating(op, name, like);
  FUSEDOPS_CHECK(like.element_size() == 2, op, ": ", name, " must be float16 or bfloat16; got ",
                 dtype_name(like.scalar_type()));
  dispatch_half(dtype, std::forward<Fn>(fn));
}

}  // namespace fusedops::cuda
