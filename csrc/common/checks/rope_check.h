// The contract of rope, checked once for CPU and CUDA, and what follows from it: sizes, strides and
// the layout of a result.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <array>
#include <optional>

#include "csrc/common/checks/row_check.h"

namespace fusedops {

// The dimensions of q and k in the order of their loops: batch, time, heads; D is behind them.
struct RopeStrides {
  int64_t batch, time, heads;
};

struct RopeShape {
  int64_t batch, time, q_heads, k_heads;
  int64_t d, rotary;      // D, and how many of them are rotated
  int64_t column_step;    // between the table's columns of two neighbouring pairs
  int64_t second_column;  // from the column of a pair's first element to that of its second
  int64_t heads_dim;
  DType dtype;
  bool fp32_tables;  // beside half q

  int64_t time_dim() const { return 3 - heads_dim; }
};

inline void check_rope_rows(const char* op, const Tensor& q, const std::optional<Tensor>& k,
                            int64_t heads_dim, int64_t rotary_dim) {
  check_dim(op, "q", q, 4, heads_dim == 1 ? "(B, H, T, D)" : "(B, T, H, D)");
  const int64_t d = q.size(3);
  FUSEDOPS_CHECK(rotary_dim >= 2 && rotary_dim % 2 == 0 && rotary_dim <= d, op,
                 ": rotary_dim must be even and from 2 to D = ", d, "; got ", rotary_dim);
  if (!k) return;
  check_like(op, "k", *k, "q", q);
  bool same = k->dim() == 4;
  for (int64_t i = 0; same && i < 4; ++i) same = i == heads_dim || k->size(i) == q.size(i);
  FUSEDOPS_CHECK(same, op, ": k must have shape ", shape_string(q),
                 " like q, but for the number of heads; got ", shape_string(*k));
}

inline void check_rope_table(const char* op, const char* name, const Tensor& table, const Tensor& q,
                             DType dtype, int64_t time, int64_t rotary) {
  check_grad_like(op, name, table, dtype, "q", q);
  const int64_t dims = table.dim();
  bool fits = dims == 2 || (dims == 3 && (table.size(0) == 1 || table.size(0) == q.size(0)));
  fits = fits && table.size(dims - 2) == time &&
         (table.size(dims - 1) == rotary || table.size(dims - 1) == rotary / 2);
  FUSEDOPS_CHECK(fits, op, ": ", name, " must have shape (", time, ", W) or (", q.size(0), ", ",
                 time, ", W) with W = ", rotary, " or ", rotary / 2, "; got ", shape_string(table));
}

inline RopeShape check_rope(const char* op, const Tensor& q, const std::optional<Tensor>& k,
                            const Tensor& cos, const Tensor& sin, int64_t heads_dim,
                            int64_t rotary_dim, bool interleaved) {
  const DType dtype = check_floating(op, "q", q);
  FUSEDOPS_CHECK(heads_dim == 1 || heads_dim == 2, op, ": heads_dim must be 1 or 2; got ",
                 heads_dim);
  check_rope_rows(op, q, k, heads_dim, rotary_dim);
  const int64_t time = q.size(3 - heads_dim);
  check_rope_table(op, "cos", cos, q, dtype, time, rotary_dim);
  check_rope_table(op, "sin", sin, q, dtype, time, rotary_dim);
  check_like(op, "sin", sin, "cos", cos);
  check_same_shape(op, "sin", sin, "cos", cos);
  const bool whole = cos.size(cos.dim() - 1) == rotary_dim;
  return {.batch = q.size(0),
          .time = time,
          .q_heads = q.size(heads_dim),
          .k_heads = k ? k->size(heads_dim) : 0,
          .d = q.size(3),
          .rotary = rotary_dim,
          .column_step = whole && interleaved ? 2 : 1,
          .second_column = !whole        ? 0
                           : interleaved ? 1
                                         : rotary_dim / 2,
          .heads_dim = heads_dim,
          .dtype = dtype,
          .fp32_tables = is_half(dtype) && cos.scalar_type() == ScalarType::Float};
}

inline RopeStrides rope_strides(const Tensor& x, int64_t heads_dim) {
  return {x.stride(0), x.stride(3 - heads_dim), x.stride(heads_dim)};
}

// Batch and time; a table without a batch, or with one for all, repeats.
inline std::array<int64_t, 2> table_strides(const Tensor& table) {
  const int64_t dims = table.dim();
  const bool repeats = dims == 2 || table.size(0) == 1;
  return {repeats ? 0 : table.stride(0), table.stride(dims - 2)};
}

// The strides of the result for x: dense, and where x's heads lie inside of T (a projection's
// output, transposed), so do the result's.
inline std::array<int64_t, 4> rope_result_strides(const Tensor& x, int64_t heads_dim) {
  const int64_t time_dim = 3 - heads_dim;
  const bool heads_inner = x.stride(heads_dim) < x.stride(time_dim);
  const int64_t inner = heads_inner ? heads_dim : time_dim, outer = 3 - inner;
  const auto at_least_one = [](int64_t size) { return size > 0 ? size : 1; };
  std::array<int64_t, 4> strides{};
  strides[3] = 1;
  strides[inner] = at_least_one(x.size(3));
  strides[outer] = strides[inner] * at_least_one(x.size(inner));
  strides[0] = strides[outer] * at_least_one(x.size(outer));
  return strides;
}

inline Tensor rope_result(const Tensor& x, int64_t heads_dim) {
  const std::array<int64_t, 4> strides = rope_result_strides(x, heads_dim);
  int32_t dtype = 0, device_type = 0, device_index = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(x.get(), &dtype));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(x.get(), &device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(x.get(), &device_index));
  AtenTensorHandle result = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(4, x.sizes().data(), strides.data(), dtype,
                                                  device_type, device_index, &result));
  return Tensor(result);
}

// Rows of contiguous elements; a copy where they are not.
inline Tensor with_contiguous_rows(const Tensor& x) {
  const int64_t last = x.dim() - 1;
  return x.size(last) == 1 || x.stride(last) == 1 ? x : dense(x);
}

}  // namespace fusedops
