// fusedops._C: the module object and introspection. Ops are registered by static initialisers in
// the other files; nothing on an op's path comes through here.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "build_facts.h"
#include "cutlass/registry.h"

namespace py = pybind11;

namespace {

py::dict build_info() {
  py::dict info;
  info["version"] = FUSEDOPS_VERSION;
  info["build_type"] = FUSEDOPS_BUILD_TYPE;
  info["cuda"] = std::string(FUSEDOPS_CUDA) == "ON";
  info["archs"] = FUSEDOPS_ARCHS;
  info["nvcc"] = FUSEDOPS_NVCC;
  info["cutlass"] = FUSEDOPS_CUTLASS;
  info["compiler"] = FUSEDOPS_CXX;
  info["torch_headers"] = FUSEDOPS_TORCH_HEADERS;
  info["torch_target"] = FUSEDOPS_TORCH_TARGET;
  info["kernels"] = fusedops::num_registered_kernels();
  return info;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.def("build_info", &build_info, "What this build was made from and for.");
}
