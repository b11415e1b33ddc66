// A build without CUDA answers CUDA tensors with one readable error instead of the dispatcher's
// page of backends.
#ifndef USE_CUDA

#include <torch/csrc/stable/library.h>

#include "common/tensor_check.h"

namespace fusedops {
namespace {

void refuse(StableIValue* /*stack*/, uint64_t /*num_inputs*/, uint64_t /*num_outputs*/) {
  fail(
      "fusedops: got CUDA tensors, but this build has no CUDA kernels; rebuild with USE_CUDA=1 "
      "(python -m fusedops info shows how it was built)");
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  for (const char* op : {"linear", "linear_preact", "matmul", "matmul_preact", "linear_backward",
                         "act_backward_bias_grad", "template_scale"}) {
    m.impl(op, &refuse);
  }
}

}  // namespace fusedops

#endif
