// Every op's schema, in one place and in every build: CPU and CUDA files only add implementations.
// NOTE: python/fusedops/_fakes.py holds a fake of each; tests/test_contract.py walks this list.
#include <torch/csrc/stable/library.h>

#include <string>

#include "common/tensor_check.h"

namespace fusedops {
namespace {

constexpr const char* kSchemas[] = {
    // y = act(x @ weight.T + bias); x (..., K), weight (N, K), bias (N,), y (..., N).
    "linear(Tensor x, Tensor weight, Tensor? bias, int activation, bool allow_tf32) -> Tensor",

    // (y, z) with z = x @ weight.T + bias.
    "linear_preact(Tensor x, Tensor weight, Tensor? bias, int activation, bool allow_tf32) "
    "-> (Tensor, Tensor)",

    // y = act(a @ b + bias); a (M, K), b (K, N), any strides.
    "matmul(Tensor a, Tensor b, Tensor? bias, int activation, bool allow_tf32) -> Tensor",
    "matmul_preact(Tensor a, Tensor b, Tensor? bias, int activation, bool allow_tf32) "
    "-> (Tensor, Tensor)",

    // (dx, dweight, dbias); what is not needed comes back with shape (0,).
    "linear_backward(Tensor dy, Tensor x, Tensor weight, Tensor? saved, int activation, "
    "bool need_dx, bool need_dweight, bool need_dbias, bool dweight_fp32, bool allow_tf32) "
    "-> (Tensor, Tensor, Tensor)",

    // dz = dy * act'(.), dbias = dz summed over rows.
    "act_backward_bias_grad(Tensor dy, Tensor? saved, int activation, bool need_dbias, "
    "bool dbias_fp32) -> (Tensor, Tensor)",

    // The template op: x * scale.
    "template_scale(Tensor x, float scale) -> Tensor",
};

#ifndef USE_CUDA
// Instead of the dispatcher's page of backends.
void refuse_cuda(StableIValue* /*stack*/, uint64_t /*num_inputs*/, uint64_t /*num_outputs*/) {
  fail(
      "fusedops: got CUDA tensors, but this build has no CUDA kernels; rebuild with USE_CUDA=1 "
      "(python -m fusedops info shows how it was built)");
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(fusedops, m) {
  for (const char* schema : kSchemas) m.def(schema);
}

#ifndef USE_CUDA
STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  for (const std::string schema : kSchemas) {
    m.impl(schema.substr(0, schema.find('(')).c_str(), &refuse_cuda);
  }
}
#endif

}  // namespace fusedops
