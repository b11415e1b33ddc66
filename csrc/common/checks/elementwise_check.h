// The contract of the elementwise ops, checked once for CPU and CUDA: dtypes, broadcasting, what
// `out` may be. And the loop nest that follows from the operands' strides.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "csrc/common/checks/element_check.h"
#include "csrc/common/checks/linear_check.h"
#include "csrc/common/iteration_space.h"

namespace fusedops {

struct NamedTensor {
  const char* name;
  const Tensor* tensor;  // null: the op was called without it
};
using NamedTensors = std::span<const NamedTensor>;

inline NamedTensor named(const char* name, const std::optional<Tensor>& tensor) {
  return {name, tensor ? &*tensor : nullptr};
}

inline std::string shape_string(const std::vector<int64_t>& shape) {
  std::ostringstream text;
  text << '(';
  for (size_t i = 0; i < shape.size(); ++i) text << (i ? ", " : "") << shape[i];
  text << (shape.size() == 1 ? ",)" : ")");
  return text.str();
}

inline void check_numeric(const char* op, const char* name, const Tensor& tensor) {
  const std::optional<Element> element = find_element(tensor.scalar_type());
  FUSEDOPS_CHECK(element && *element != Element::kBool, op, ": ", name,
                 " must be floating (16 to 64 bits) or an integer (8 to 64 bits); got ",
                 dtype_name(tensor.scalar_type()));
}

// The first input names dtype and device; the result has the broadcast shape of all inputs.
inline std::vector<int64_t> check_broadcast(const char* op, NamedTensors inputs) {
  const NamedTensor& first = inputs[0];
  check_numeric(op, first.name, *first.tensor);
  std::vector<int64_t> shape;
  for (const NamedTensor& input : inputs) {
    if (input.tensor != first.tensor) {
      check_like(op, input.name, *input.tensor, first.name, *first.tensor);
    }
    const auto sizes = input.tensor->sizes();
    if (sizes.size() > shape.size()) shape.insert(shape.begin(), sizes.size() - shape.size(), 1);
    const size_t lead = shape.size() - sizes.size();
    for (size_t i = 0; i < sizes.size(); ++i) {
      FUSEDOPS_CHECK(sizes[i] == shape[lead + i] || sizes[i] == 1 || shape[lead + i] == 1, op, ": ",
                     input.name, " must have a shape that broadcasts with ", shape_string(shape),
                     "; got ", shape_string(*input.tensor));
      if (sizes[i] != 1) shape[lead + i] = sizes[i];
    }
  }
  return shape;
}

inline void check_square_backward(const Tensor& dy, const Tensor& x) {
  check_floating("square_backward", "dy", dy);
  check_like("square_backward", "x", x, "dy", dy);
  check_same_shape("square_backward", "x", x, "dy", dy);
}

// `vector`, where present, is (N,) for x (..., N).
inline void check_trailing(const char* op, const char* name, const std::optional<Tensor>& vector,
                           const Tensor& x) {
  if (!vector) return;
  check_like(op, name, *vector, "x", x);
  const int64_t n = x.size(x.dim() - 1);
  FUSEDOPS_CHECK(vector->dim() == 1 && vector->size(0) == n, op, ": ", name, " must have shape (",
                 n, ",) to match x ", shape_string(x), "; got ", shape_string(*vector));
}

inline DType check_scale_bias_act(const char* op,
                                  const Tensor& x,                     // (..., N)
                                  const std::optional<Tensor>& scale,  // (N,)
                                  const std::optional<Tensor>& bias,   // (N,)
                                  int64_t activation) {
  check_activation(op, activation);
  const DType dtype = check_floating(op, "x", x);
  check_min_dim(op, "x", x, 1);
  check_trailing(op, "scale", scale, x);
  check_trailing(op, "bias", bias, x);
  return dtype;
}

inline DType check_scale_bias_act_backward(const char* op,
                                           const Tensor& dy,                    // (..., N)
                                           const Tensor& x,                     // (..., N)
                                           const std::optional<Tensor>& scale,  // (N,)
                                           const std::optional<Tensor>& bias,   // (N,)
                                           int64_t activation) {
  check_activation(op, activation);
  const DType dtype = check_floating(op, "dy", dy);
  check_min_dim(op, "dy", dy, 1);
  check_like(op, "x", x, "dy", dy);
  check_same_shape(op, "x", x, "dy", dy);
  check_trailing(op, "scale", scale, x);
  check_trailing(op, "bias", bias, x);
  return dtype;
}

inline void check_seed(const char* op, const std::optional<Tensor>& seed, double p,
                       const char* like_name, const Tensor& like) {
  FUSEDOPS_CHECK(p >= 0 && p <= 1, op, ": p must be from 0 to 1; got ", p);
  if (p == 0) return;
  FUSEDOPS_CHECK(seed.has_value(), op, ": seed must be an int64 tensor of shape (1,); got None");
  FUSEDOPS_CHECK(seed->scalar_type() == ScalarType::Long && seed->dim() == 1 && seed->size(0) == 1,
                 op, ": seed must be an int64 tensor of shape (1,); got ",
                 dtype_name(seed->scalar_type()), " ", shape_string(*seed));
  FUSEDOPS_CHECK(same_device(*seed, like), op, ": seed must be on ", device_string(like), " like ",
                 like_name, "; got ", device_string(*seed));
}

inline DType check_bias_dropout_residual(const char* op,
                                         const Tensor& x,                        // (..., N)
                                         const std::optional<Tensor>& bias,      // (N,)
                                         const std::optional<Tensor>& residual,  // (..., N)
                                         const std::optional<Tensor>& seed,      // (1,) int64
                                         double p) {
  const DType dtype = check_floating(op, "x", x);
  check_min_dim(op, "x", x, 1);
  check_trailing(op, "bias", bias, x);
  if (residual) {
    check_like(op, "residual", *residual, "x", x);
    check_same_shape(op, "residual", *residual, "x", x);
  }
  check_seed(op, seed, p, "x", x);
  return dtype;
}

inline DType check_bias_dropout_residual_backward(const char* op,
                                                  const Tensor& dy,                   // (..., N)
                                                  const std::optional<Tensor>& seed,  // (1,)
                                                  double p) {
  const DType dtype = check_floating(op, "dy", dy);
  check_min_dim(op, "dy", dy, 1);
  check_seed(op, seed, p, "dy", dy);
  return dtype;
}

// ---- out ----

// A new result of `shape`, in the order of memory of the first input that has this shape (as
// torch.empty_like keeps it), so that permuted inputs are read and written along memory.
inline Tensor new_result(const std::vector<int64_t>& shape, NamedTensors inputs) {
  for (const NamedTensor& input : inputs) {
    const auto sizes = input.tensor->sizes();
    if (!std::equal(sizes.begin(), sizes.end(), shape.begin(), shape.end())) continue;
    if (input.tensor->is_contiguous()) break;
    return torch::stable::empty_like(*input.tensor);
  }
  return new_dense(*inputs[0].tensor, shape);
}

// Elements between the first and the last of a tensor, both included.
inline int64_t extent(const Tensor& tensor) {
  int64_t last = 0;
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  return last + 1;
}

// A sufficient rule, which every slice and transpose meets.
inline bool overlaps_itself(const Tensor& tensor) {
  if (tensor.numel() == 0) return false;
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  int64_t reach = 0;  // distance to the last element within the smaller strides
  for (const size_t i : order) {
    if (sizes[i] <= 1) continue;
    if (strides[i] <= reach) return true;
    reach += (sizes[i] - 1) * strides[i];
  }
  return false;
}

// A dimension of a walk through memory: v * stride for 0 <= v <= last.
struct Steps {
  int64_t stride, last;
};

// Whether one step along each dimension adds up to the distance. Strides descend; views of one
// tensor leave a few candidates per dimension. Out of budget, strange strides count as a yes.
inline bool reaches(std::span<const Steps> steps, int64_t distance, int& budget) {
  if (steps.empty()) return distance == 0;
  if (distance < 0) return false;
  if (--budget < 0) return true;
  const auto [stride, last] = steps.front();
  const auto rest = steps.subspan(1);
  int64_t reach = 0;
  for (const Steps& s : rest) reach += s.stride * s.last;
  const int64_t first = distance > reach ? (distance - reach + stride - 1) / stride : 0;
  for (int64_t v = first; v <= std::min(last, distance / stride); ++v) {
    if (reaches(rest, distance - v * stride, budget)) return true;
  }
  return false;
}

// Whether some element is in both: sum(i * a's stride) - sum(j * b's stride) = b's start - a's.
inline bool shares_elements(const Tensor& a, const Tensor& b) {
  const int64_t bytes =
      static_cast<const char*>(b.const_data_ptr()) - static_cast<const char*>(a.const_data_ptr());
  const auto size = static_cast<int64_t>(a.element_size());
  if (bytes % size != 0) return true;
  int64_t distance = bytes / size;
  std::vector<Steps> steps;
  for (const Tensor* t : {&a, &b}) {
    const auto sizes = t->sizes();
    const auto strides = t->strides();
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] <= 1 || strides[i] == 0) continue;
      steps.push_back({strides[i], sizes[i] - 1});
      if (t == &b) distance += strides[i] * (sizes[i] - 1);  // j counted from its end
    }
  }
  std::sort(steps.begin(), steps.end(),
            [](const Steps& x, const Steps& y) { return x.stride > y.stride; });
  size_t count = 0;  // dimensions of one stride are one
  for (const Steps& s : steps) {
    if (count > 0 && steps[count - 1].stride == s.stride) {
      steps[count - 1].last += s.last;
    } else {
      steps[count++] = s;
    }
  }
  int budget = 10000;
  return reaches(std::span(steps).first(count), distance, budget);
}

// Some memory is in both, but not the same element at the same place. Two views with gaps may
// interleave without sharing memory; they pass.
inline bool overlaps_partly(const Tensor& out, const Tensor& input) {
  if (out.numel() == 0 || input.numel() == 0) return false;
  const auto begin = [](const Tensor& t) { return static_cast<const char*>(t.const_data_ptr()); };
  const auto end = [&](const Tensor& t) {
    return begin(t) + extent(t) * static_cast<int64_t>(t.element_size());
  };
  if (begin(out) >= end(input) || begin(input) >= end(out)) return false;
  if (begin(out) != begin(input) || !same_shape(out, input)) return shares_elements(out, input);
  const auto a = out.strides();
  const auto b = input.strides();
  for (size_t i = 0; i < a.size(); ++i) {
    if (out.size(i) > 1 && a[i] != b[i]) return shares_elements(out, input);
  }
  return false;
}

// out may be one of the inputs (the op then works in place).
inline void check_out(const char* op, const Tensor& out, const std::vector<int64_t>& shape,
                      NamedTensors inputs) {
  const NamedTensor& first = inputs[0];
  check_like(op, "out", out, first.name, *first.tensor);
  const auto sizes = out.sizes();
  FUSEDOPS_CHECK(std::equal(sizes.begin(), sizes.end(), shape.begin(), shape.end()), op,
                 ": out must have shape ", shape_string(shape), "; got ", shape_string(out));
  FUSEDOPS_CHECK(!overlaps_itself(out), op,
                 ": out must not overlap itself; got a tensor with several elements in one place");
  for (const NamedTensor& input : inputs) {
    FUSEDOPS_CHECK(input.tensor == nullptr || !overlaps_partly(out, *input.tensor), op,
                   ": out must be ", input.name, " or share no memory with it; got a tensor that ",
                   "overlaps it in part");
  }
}

// ---- loop nest ----

// keep_order: the position in the nest is the position in a contiguous out. Otherwise dimensions
// are ordered by out's strides, so that a permuted layout that all share is one run.
inline IterationSpace iteration_space(const char* op, const Tensor& out, NamedTensors inputs,
                                      bool keep_order = false) {
  IterationSpace space;
  space.count = out.numel();
  const auto sizes = out.sizes();
  const auto out_strides = out.strides();
  std::vector<size_t> order;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1) order.push_back(i);
  }
  if (!keep_order) {
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return out_strides[a] > out_strides[b]; });
  }
  const int operands = 1 + static_cast<int>(inputs.size());
  const auto stride_of = [&](int operand, size_t dim) -> int64_t {
    if (operand == 0) return out_strides[dim];
    const Tensor* input = inputs[operand - 1].tensor;
    if (input == nullptr) return 0;
    const int64_t own = static_cast<int64_t>(dim) - (out.dim() - input->dim());
    return own < 0 || input->size(own) == 1 ? 0 : input->stride(own);
  };
  for (const size_t dim : order) {
    bool merges = space.dims > 0;
    for (int k = 0; merges && k < operands; ++k) {
      merges = space.strides[k][space.dims - 1] == stride_of(k, dim) * sizes[dim];
    }
    if (!merges) {
      FUSEDOPS_CHECK(space.dims < kMaxDims, op, ": the operands must have at most ", kMaxDims,
                     " dimensions that do not merge; got shape ", shape_string(out));
      space.sizes[space.dims++] = 1;
    }
    space.sizes[space.dims - 1] *= sizes[dim];
    for (int k = 0; k < operands; ++k) space.strides[k][space.dims - 1] = stride_of(k, dim);
  }
  return space;
}

}  // namespace fusedops
