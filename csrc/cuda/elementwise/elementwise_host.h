// Host side of the elementwise ops on CUDA: from tensors to the engine's problem.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "csrc/common/checks/elementwise_check.h"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/elementwise/elementwise.cuh"

namespace fusedops::cuda {

// The problem of `out` and the inputs; an absent input reads as its constant.
template <int kInputs>
ElementwiseProblem<kInputs> problem_of(const char* op, const Tensor& out,
                                       const NamedTensor (&inputs)[kInputs],
                                       const std::array<float, kInputs>& constants,
                                       bool keep_order = false, unsigned per_column = 0) {
  const void* pointers[kInputs + 1] = {out.mutable_data_ptr()};
  for (int k = 0; k < kInputs; ++k) {
    pointers[k + 1] = inputs[k].tensor == nullptr ? nullptr : inputs[k].tensor->const_data_ptr();
  }
  return make_problem<kInputs>(iteration_space(op, out, inputs, keep_order), pointers, constants,
                               out.element_size(), per_column);
}

}  // namespace fusedops::cuda
