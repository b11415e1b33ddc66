// fusedops._C: the module object and introspection. Ops are registered by static initialisers in
// the other files; nothing on an op's path comes through here.
#include <pybind11/pybind11.h>

#include <string>

#include "build_facts.h"
#include "csrc/bindings/module_gemm.h"
#include "csrc/bindings/module_reduce.h"
#include "csrc/cutlass/configs/registry.h"

namespace py = pybind11;
using namespace py::literals;

namespace fusedops {
namespace {

py::dict build_info() {
  return py::dict("version"_a = FUSEDOPS_VERSION, "build_type"_a = FUSEDOPS_BUILD_TYPE,
                  "cuda"_a = std::string(FUSEDOPS_CUDA) == "ON", "archs"_a = FUSEDOPS_ARCHS,
                  "nvcc"_a = FUSEDOPS_NVCC, "cutlass"_a = FUSEDOPS_CUTLASS,
                  "compiler"_a = FUSEDOPS_CXX, "torch_headers"_a = FUSEDOPS_TORCH_HEADERS,
                  "torch_target"_a = FUSEDOPS_TORCH_TARGET, "kernels"_a = num_registered_kernels());
}

}  // namespace
}  // namespace fusedops

PYBIND11_MODULE(_C, m) {
  using namespace fusedops;
  m.def("build_info", &build_info, "What this build was made from and for.");
  bind_gemm(m);
  bind_reduce(m);
}
