// Elementwise loops with broadcasting and any strides, split over torch's threads.
#pragma once

#include <algorithm>
#include <array>

#include "csrc/common/checks/elementwise_check.h"
#include "csrc/common/host/aten.h"
#include "csrc/cpu/host_types.h"
#include "csrc/cpu/pointwise.h"

namespace fusedops::cpu {

inline int64_t row_offset(const IterationSpace& space, int operand, int64_t row) {
  int64_t offset = 0;
  for (int d = space.dims - 2; d >= 0; --d) {
    offset += row % space.sizes[d] * space.strides[operand][d];
    row /= space.sizes[d];
  }
  return offset;
}

// out[i] = fn({in0[i], in1[i], ...}, i) over the loop nest.
template <typename T, typename Out, size_t kInputs, typename Fn>
void for_each_element(const IterationSpace& space, const std::array<const T*, kInputs>& in,
                      Out* out, Fn fn) {
  const int last = space.dims - 1;
  const int64_t cols = last >= 0 ? space.sizes[last] : 1;
  torch::stable::parallel_for(0, space.count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const int64_t row = i / cols, col = i % cols;
      const int64_t run = std::min(cols - col, end - i);
      std::array<int64_t, kInputs + 1> stride{};
      for (size_t k = 0; k <= kInputs && last >= 0; ++k) stride[k] = space.strides[k][last];
      Out* to = out + row_offset(space, 0, row) + col * stride[0];
      std::array<const T*, kInputs> from;
      for (size_t k = 0; k < kInputs; ++k) {
        from[k] = in[k] + row_offset(space, k + 1, row) + col * stride[k + 1];
      }
      for (int64_t j = 0; j < run; ++j) {
        std::array<T, kInputs> values;
        for (size_t k = 0; k < kInputs; ++k) values[k] = from[k][j * stride[k + 1]];
        to[j * stride[0]] = fn(values, i + j);
      }
      i += run;
    }
  });
}

// The inputs' data; an absent input reads as its constant.
template <typename T, int kInputs>
std::array<const T*, kInputs> pointers(const NamedTensor (&inputs)[kInputs],
                                       const std::array<T, kInputs>& constants) {
  std::array<const T*, kInputs> result;
  for (int k = 0; k < kInputs; ++k) {
    result[k] = inputs[k].tensor == nullptr
                    ? &constants[k]
                    : static_cast<const T*>(inputs[k].tensor->const_data_ptr());
  }
  return result;
}

}  // namespace fusedops::cpu
