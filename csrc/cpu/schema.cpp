// Every op's schema, in one place and in every build: CPU and CUDA files only add implementations.
// NOTE: python/fusedops registers a fake next to each op; tests/test_contract.py walks this list.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY_FRAGMENT(fusedops, m) {
  // y = act(x @ weight.T + bias); x (..., K), weight (N, K), bias (N,), y (..., N).
  m.def("linear(Tensor x, Tensor weight, Tensor? bias, int activation, bool allow_tf32) -> Tensor");

  // (y, z) with z = x @ weight.T + bias.
  m.def(
      "linear_preact(Tensor x, Tensor weight, Tensor? bias, int activation, bool allow_tf32) "
      "-> (Tensor, Tensor)");

  // y = act(a @ b + bias); a (M, K), b (K, N), any strides.
  m.def("matmul(Tensor a, Tensor b, Tensor? bias, int activation, bool allow_tf32) -> Tensor");
  m.def(
      "matmul_preact(Tensor a, Tensor b, Tensor? bias, int activation, bool allow_tf32) "
      "-> (Tensor, Tensor)");

  // (dx, dweight, dbias); what is not needed comes back with shape (0,).
  m.def(
      "linear_backward(Tensor dy, Tensor x, Tensor weight, Tensor? saved, int activation, "
      "bool need_dx, bool need_dweight, bool need_dbias, bool dweight_fp32, bool allow_tf32) "
      "-> (Tensor, Tensor, Tensor)");

  // dz = dy * act'(.), dbias = dz summed over rows.
  m.def(
      "act_backward_bias_grad(Tensor dy, Tensor? saved, int activation, bool need_dbias, "
      "bool dbias_fp32) -> (Tensor, Tensor)");

  // The template op: x * scale.
  m.def("template_scale(Tensor x, float scale) -> Tensor");
}
