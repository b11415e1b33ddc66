// fusedops._C: the module object and introspection. Ops are registered by static initialisers in
// the other files; nothing on an op's path comes through here.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>

#include "build_facts.h"
#include "cutlass/registry.h"
#include "cutlass/select.h"

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

py::dict describe(fusedops::Family family, int index) {
  const fusedops::GemmConfig& config = fusedops::config_of(family, index);
  py::dict d;
  d["family"] = family == fusedops::Family::kSm90 ? "sm90" : "sm80";
  d["index"] = index;
  d["name"] = fusedops::config_name(family, index);
  d["tile"] = py::make_tuple(config.tile_m, config.tile_n);
  d["cluster"] = py::make_tuple(config.cluster_m, config.cluster_n);
  return d;
}

py::list gemm_configs() {
  py::list configs;
  for (const auto family : {fusedops::Family::kSm80, fusedops::Family::kSm90}) {
    for (int i = 0; i < fusedops::num_configs(family); ++i) configs.append(describe(family, i));
  }
  return configs;
}

// A problem over made-up, aligned, dense memory.
fusedops::GemmProblem problem_from(int64_t m, int64_t n, int64_t k, const std::string& dtype,
                                   const std::string& layout, const std::string& epilogue,
                                   bool allow_tf32) {
  using namespace fusedops;
  const std::map<std::string, DType> dtypes{{"float16", DType::kFloat16},
                                            {"bfloat16", DType::kBFloat16},
                                            {"float32", DType::kFloat32},
                                            {"float64", DType::kFloat64}};
  const std::map<std::string, Epilogue> epilogues{{"fused", Epilogue::kFused},
                                                  {"preact", Epilogue::kPreact},
                                                  {"accumulator", Epilogue::kAccumulator}};
  if (layout != "TN" && layout != "NN" && layout != "NT" && layout != "TT") {
    throw py::value_error("select_config: layout must be TN, NN, NT or TT; got " + layout);
  }
  if (!dtypes.count(dtype)) throw py::value_error("select_config: unknown dtype " + dtype);
  if (!epilogues.count(epilogue))
    throw py::value_error("select_config: unknown epilogue " + epilogue);
  GemmProblem p;
  p.m = m;
  p.n = n;
  p.k = k;
  p.dtype = dtypes.at(dtype);
  p.epilogue = epilogues.at(epilogue);
  if (p.dtype == DType::kFloat32) p.math = allow_tf32 ? MathMode::kTf32 : MathMode::kFp32;
  p.a.major = layout == "NT" || layout == "TT" ? Major::kMN : Major::kK;
  p.b.major = layout == "TN" || layout == "TT" ? Major::kK : Major::kMN;
  p.a.ld = p.a.major == Major::kK ? k : m;
  p.b.ld = p.b.major == Major::kK ? k : n;
  p.ldd = n;
  static char anywhere[16] __attribute__((aligned(16)));
  p.d = p.preact = anywhere;
  return p;
}

py::dict select_config(int64_t m, int64_t n, int64_t k, const std::string& dtype,
                       const std::string& layout, const std::string& epilogue, bool allow_tf32,
                       int capability, int sm_count) {
  const auto problem = problem_from(m, n, k, dtype, layout, epilogue, allow_tf32);
  const auto plan = fusedops::select_gemm(problem, {capability, sm_count});
  if (plan.config < 0) return {};
  py::dict d = describe(plan.family, plan.config);
  d["splits"] = plan.splits;
  d["swizzle"] = plan.swizzle;
  d["expected_us"] = plan.expected_us;
  return d;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.def("gemm_configs", &gemm_configs, "Every compiled GEMM tile configuration.");
  m.def(
      "select_config", &select_config, py::arg("m"), py::arg("n"), py::arg("k"),
      py::arg("dtype") = "bfloat16", py::arg("layout") = "TN", py::arg("epilogue") = "fused",
      py::arg("allow_tf32") = false, py::arg("capability") = 90, py::arg("sm_count") = 132,
      "The configuration chosen for dense, aligned operands (TN = x @ weight.T, NN = dz @ weight, "
      "NT = dz.T @ x); needs no GPU.");
  m.def("build_info", &build_info, "What this build was made from and for.");
}
