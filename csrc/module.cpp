// fusedops._C: the module object and introspection. Ops are registered by static initialisers in
// the other files; nothing on an op's path comes through here.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "build_facts.h"
#include "cutlass/registry.h"
#include "cutlass/select.h"

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

py::list gemm_configs() {
  py::list configs;
  for (Family family : {Family::kSm90, Family::kSm80}) {
    for (int i = 0; i < num_configs(family); ++i) {
      const GemmConfig& config = config_of(family, i);
      configs.append(py::dict(
          "name"_a = config_name(family, i), "family"_a = family == Family::kSm90 ? "sm90" : "sm80",
          "index"_a = i, "tile"_a = py::make_tuple(config.tile_m, config.tile_n, config.tile_k),
          "cluster"_a = py::make_tuple(config.cluster_m, config.cluster_n)));
    }
  }
  return configs;
}

// One of `names`, as its position.
template <typename Enum>
Enum parse(const char* argument, const std::string& value, const std::vector<std::string>& names) {
  std::string expected;
  for (size_t i = 0; i < names.size(); ++i) {
    if (value == names[i]) return static_cast<Enum>(i);
    expected += (i ? ", " : "") + names[i];
  }
  throw py::value_error(std::string(argument) + " must be one of " + expected + "; got " + value);
}

py::dict describe(const Candidate& candidate) {
  const GemmPlan& plan = candidate.plan;
  return py::dict("name"_a = config_name(plan.family, plan.config),
                  "family"_a = plan.family == Family::kSm90 ? "sm90" : "sm80",
                  "index"_a = plan.config, "splits"_a = plan.splits, "swizzle"_a = plan.swizzle,
                  "expected_us"_a = plan.expected_us, "rejected"_a = candidate.rejected);
}

// The pointers of a problem that only exists on paper: aligned, never read.
void* paper_pointer(bool aligned) { return reinterpret_cast<void*>(aligned ? 256 : 257); }

py::tuple select_config(int64_t m, int64_t n, int64_t k, const std::string& dtype,
                        const std::string& epilogue, const std::string& a_major,
                        const std::string& b_major, const std::string& math, bool aligned,
                        int capability, int sm_count) {
  GemmProblem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.dtype = parse<DType>("dtype", dtype, {"float16", "bfloat16", "float32", "float64"});
  problem.epilogue = parse<Epilogue>("epilogue", epilogue, {"fused", "preact", "accumulator"});
  problem.math = parse<MathMode>("math", math, {"native", "tf32", "fp32"});
  problem.a.major = parse<Major>("a_major", a_major, {"k", "mn"});
  problem.b.major = parse<Major>("b_major", b_major, {"k", "mn"});
  problem.a.ld = problem.a.major == Major::kK ? k : m;
  problem.b.ld = problem.b.major == Major::kK ? k : n;
  problem.ldd = n;
  problem.a.data = problem.b.data = problem.d = problem.preact = paper_pointer(aligned);

  const DeviceModel device{capability, sm_count};
  py::list candidates;
  for (const Candidate& candidate : enumerate_candidates(problem, device)) {
    candidates.append(describe(candidate));
  }
  const GemmPlan best = select_gemm(problem, device);
  py::object chosen = py::none();
  if (best.config >= 0) chosen = describe({best, nullptr});
  return py::make_tuple(chosen, candidates);
}

}  // namespace
}  // namespace fusedops

PYBIND11_MODULE(_C, m) {
  using namespace fusedops;
  m.def("build_info", &build_info, "What this build was made from and for.");
  m.def("gemm_configs", &gemm_configs, "Every GEMM tile configuration that selection knows.");
  m.def(
      "select_config", &select_config, "m"_a, "n"_a, "k"_a, "dtype"_a = "bfloat16", py::kw_only(),
      "epilogue"_a = "fused", "a_major"_a = "k", "b_major"_a = "k", "math"_a = "native",
      "aligned"_a = true, "capability"_a = 90, "sm_count"_a = 132,
      "(chosen or None, candidates) for act(a (m, k) @ b (k, n)) with dense operands; a candidate "
      "that cannot run says why under 'rejected'.");
}
