#include "csrc/bindings/module_gemm.h"

#include <pybind11/stl.h>

#include <iterator>
#include <string>
#include <vector>

#include "csrc/cutlass/configs/stream_k_tail.h"
#include "csrc/cutlass/select/narrow_plan.h"
#include "csrc/cutlass/select/operands.h"
#include "csrc/cutlass/select/sm90_plan.h"
#include "csrc/cutlass/select/thin_plan.h"
#include "csrc/cutlass/select/tuned_plans.h"
#include "csrc/cutlass/select/unaligned_plan.h"

namespace py = pybind11;
using namespace py::literals;

namespace fusedops {
namespace {

// ---- names of enumerators, in their order: Python has them from enums() ----

using Names = std::vector<std::string>;

const Names kDTypes = {"float16", "bfloat16", "float32", "float64"};
const Names kEpilogues = {"fused", "preact", "accumulator", "grad", "residual", "moments", "norm"};
const Names kMathModes = {"native", "tf32", "fp32"};
const Names kMajors = {"k", "mn"};
const Names kFamilies(std::begin(kFamilyNames), std::end(kFamilyNames));
const Names kChosenBy = {"model", "measured", "skinny", "tuned"};

// The enumerator that `value` names.
template <typename Enum>
Enum parse(const char* argument, const std::string& value, const Names& names) {
  std::string expected;
  for (size_t i = 0; i < names.size(); ++i) {
    if (value == names[i]) return static_cast<Enum>(i);
    expected += (i ? ", " : "") + names[i];
  }
  throw py::value_error(std::string(argument) + " must be one of " + expected + "; got " + value);
}

template <typename Enum>
const std::string& name_of(Enum value, const Names& names) {
  return names.at(static_cast<size_t>(value));
}

// ---- problems and plans as dicts ----

// An address that is never read: only its alignment counts.
void* paper_pointer(int64_t offset) { return reinterpret_cast<void*>(256 + offset % 16); }

py::dict describe(const GemmPlan& plan, const char* rejected = nullptr) {
  return py::dict("name"_a = config_name(plan.family, plan.config),
                  "family"_a = name_of(plan.family, kFamilies), "index"_a = plan.config,
                  "splits"_a = splits_number(plan), "swizzle"_a = swizzle_number(plan),
                  "expected_us"_a = plan.expected_us, "rejected"_a = rejected);
}

py::object describe_found(const GemmPlan& plan) {
  if (plan.config < 0) return py::none();
  py::dict found = describe(plan);
  found["chosen_by"] = name_of(plan.chosen_by, kChosenBy);
  return found;
}

py::dict describe(const GemmProblem& p) {
  const auto offset = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16; };
  return py::dict(
      "m"_a = p.m, "n"_a = p.n, "k"_a = p.k, "dtype"_a = name_of(p.dtype, kDTypes),
      "math"_a = name_of(p.math, kMathModes), "epilogue"_a = name_of(p.epilogue, kEpilogues),
      "a_major"_a = name_of(p.a.major, kMajors), "b_major"_a = name_of(p.b.major, kMajors),
      "activation"_a = static_cast<int64_t>(p.activation), "lda"_a = p.a.ld, "ldb"_a = p.b.ld,
      "ldd"_a = p.ldd, "a_offset"_a = offset(p.a.data), "b_offset"_a = offset(p.b.data),
      "has_aux"_a = p.aux != nullptr);
}

GemmProblem parse_problem(const py::dict& fields) {
  const auto text = [&](const char* name) { return fields[name].cast<std::string>(); };
  const auto number = [&](const char* name) { return fields[name].cast<int64_t>(); };
  GemmProblem p;
  p.m = number("m");
  p.n = number("n");
  p.k = number("k");
  p.dtype = parse<DType>("dtype", text("dtype"), kDTypes);
  p.math = parse<MathMode>("math", text("math"), kMathModes);
  p.epilogue = parse<Epilogue>("epilogue", text("epilogue"), kEpilogues);
  p.activation = static_cast<Activation>(number("activation"));
  p.a.major = parse<Major>("a_major", text("a_major"), kMajors);
  p.b.major = parse<Major>("b_major", text("b_major"), kMajors);
  const auto given = [&](const char* name, int64_t otherwise) {
    return fields.contains(name) ? number(name) : otherwise;
  };
  p.a.ld = given("lda", p.a.major == Major::kK ? p.k : p.m);
  p.b.ld = given("ldb", p.b.major == Major::kK ? p.k : p.n);
  p.a.data = paper_pointer(given("a_offset", 0));
  p.b.data = paper_pointer(given("b_offset", 0));
  p.ldd = given("ldd", p.n);
  p.d = p.preact = paper_pointer(0);
  if (given("has_aux", false)) p.aux = paper_pointer(0);
  return p;
}

py::list describe_candidates(const GemmProblem& problem, const DeviceModel& device) {
  py::list candidates;
  for (const Candidate& candidate : enumerate_candidates(problem, device)) {
    py::dict found = describe(candidate.plan, candidate.rejected);
    found["dynamic_schedule"] = wants_dynamic_schedule(problem, candidate.plan, device);
    candidates.append(found);
  }
  return candidates;
}

// ---- introspection ----

py::dict enums() {
  return py::dict("dtype"_a = kDTypes, "epilogue"_a = kEpilogues, "math"_a = kMathModes,
                  "major"_a = kMajors, "family"_a = kFamilies, "chosen_by"_a = kChosenBy);
}

py::list gemm_configs() {
  py::list configs;
  for (Family family : {Family::kSm90, Family::kSm80, Family::kSkinny, Family::kCluster}) {
    for (int i = 0; i < num_configs(family); ++i) {
      const GemmConfig& config = config_of(family, i);
      configs.append(py::dict(
          "name"_a = config_name(family, i), "family"_a = name_of(family, kFamilies), "index"_a = i,
          "tile"_a = py::make_tuple(config.tile_m, config.tile_n, config.tile_k),
          "cluster"_a = py::make_tuple(config.cluster_m, config.cluster_n)));
    }
  }
  return configs;
}

py::tuple select_config(int64_t m, int64_t n, int64_t k, const std::string& dtype,
                        const std::string& epilogue, const std::string& a_major,
                        const std::string& b_major, const std::string& math, int64_t activation,
                        bool aligned, int capability, int sm_count) {
  const int64_t offset = aligned ? 0 : 1;
  GemmProblem problem = parse_problem(
      py::dict("m"_a = m, "n"_a = n, "k"_a = k, "dtype"_a = dtype, "math"_a = math,
               "epilogue"_a = epilogue, "activation"_a = activation, "a_major"_a = a_major,
               "b_major"_a = b_major, "a_offset"_a = offset, "b_offset"_a = offset));
  problem.d = problem.preact = paper_pointer(offset);
  const DeviceModel device{capability, sm_count};
  return py::make_tuple(describe_found(select_gemm(problem, device)),
                        describe_candidates(problem, device));
}

// (row stride, column stride, address) of a (rows, cols) operand.
using Strides = std::tuple<int64_t, int64_t, int64_t>;

MatrixView paper_view(const Strides& s, int64_t rows, int64_t cols) {
  return {paper_pointer(std::get<2>(s)), rows, cols, std::get<0>(s), std::get<1>(s)};
}

// A call of the op for operands a (m, k) and b (k, n) that are never read.
struct PaperCall {
  GemmProblem problem;  // without its operands
  MatrixView a, b;
  DeviceModel device;
};

GemmProblem paper_problem(int64_t m, int64_t n, int64_t k, const std::string& dtype,
                          const std::string& epilogue, int64_t activation, bool allow_tf32) {
  GemmProblem problem;
  problem.m = m;
  problem.n = problem.ldd = n;
  problem.k = k;
  problem.d = problem.preact = paper_pointer(0);
  problem.activation = static_cast<Activation>(activation);
  problem.dtype = parse<DType>("dtype", dtype, kDTypes);
  problem.epilogue = parse<Epilogue>("epilogue", epilogue, kEpilogues);
  if (problem.dtype == DType::kFloat32) {
    problem.math = allow_tf32 ? MathMode::kTf32 : MathMode::kFp32;
  }
  return problem;
}

py::dict prepare_gemm(const PaperCall& call) {
  const auto& [problem, a, b, device] = call;
  const OperandPlan plan = plan_operands(a, b, problem, device);
  return py::dict("problem"_a = describe(plan.problem), "pack_a"_a = plan.pack_a,
                  "pack_b"_a = plan.pack_b);
}

py::dict thin_gemm(const PaperCall& call) {
  const auto& [problem, a, b, device] = call;
  const ThinPlan plan = plan_thin(a, b, problem, device);
  if (plan.rejected) return py::dict("takes"_a = false, "rejected"_a = plan.rejected);
  return py::dict("takes"_a = thin_takes(plan, a, b, problem, device), "rejected"_a = py::none(),
                  "name"_a = thin_name(plan), "tile"_a = thin_tile(plan),
                  "expected_us"_a = plan.expected_us,
                  "other_us"_a = gemm_us(a, b, problem, device));
}

py::dict unaligned_gemm(const PaperCall& call) {
  const auto& [problem, a, b, device] = call;
  const UnalignedPlan plan = plan_unaligned(a, b, problem, device);
  if (plan.rejected) return py::dict("takes"_a = false, "rejected"_a = plan.rejected);
  const unaligned::Tile& tile = unaligned::tile_of(problem.dtype, plan.tile);
  return py::dict(
      "takes"_a = unaligned_takes(plan, a, b, problem, device), "rejected"_a = py::none(),
      "name"_a = unaligned_name(plan), "tile"_a = py::make_tuple(tile.m, tile.n),
      "splits"_a = plan.slices, "pack_a"_a = plan.pack_a, "pack_b"_a = plan.pack_b,
      "expected_us"_a = plan.expected_us, "other_us"_a = otherwise_us(a, b, problem, device));
}

// Binds what `answer` says of a call.
void def_call(py::module_& module, const char* name, py::dict (*answer)(const PaperCall&),
              const char* doc) {
  module.def(
      name,
      [answer](int64_t m, int64_t n, int64_t k, const Strides& a, const Strides& b,
               const std::string& dtype, const std::string& epilogue, int64_t activation,
               bool allow_tf32, int capability, int sm_count) {
        return answer({paper_problem(m, n, k, dtype, epilogue, activation, allow_tf32),
                       paper_view(a, m, k),
                       paper_view(b, k, n),
                       {capability, sm_count}});
      },
      "m"_a, "n"_a, "k"_a, py::kw_only(), "a"_a, "b"_a, "dtype"_a, "epilogue"_a, "activation"_a,
      "allow_tf32"_a, "capability"_a, "sm_count"_a, doc);
}

py::dict plan_gemm(const py::dict& fields, int capability, int sm_count) {
  const GemmProblem problem = parse_problem(fields);
  const DeviceModel device{capability, sm_count};
  return py::dict("chosen"_a = describe_found(choose_gemm(problem, device)),
                  "tuned"_a = describe_found(tuned_plan(problem, device)),
                  "selected"_a = describe_found(select_gemm(problem, device)),
                  "candidates"_a = describe_candidates(problem, device));
}

bool narrow_backward(int64_t m, int64_t n, int64_t k, const Strides& x, const Strides& weight,
                     const std::string& dtype, int64_t activation, bool dx, bool dweight,
                     bool dbias, int capability, int sm_count) {
  const NarrowProblem problem{.dtype = parse<DType>("dtype", dtype, kDTypes),
                              .activation = static_cast<Activation>(activation),
                              .m = m,
                              .n = n,
                              .k = k,
                              .dx = dx,
                              .dweight = dweight,
                              .dbias = dbias};
  const MatrixView dy = paper_view({n, 1, 0}, m, n);
  const NarrowOperands operands{
      .dy = dy, .saved = dy, .x = paper_view(x, m, k), .weight = paper_view(weight, n, k)};
  return narrow_takes(problem, operands, {capability, sm_count});
}

// ---- the tuned table ----

int index_of(Family family, const std::string& name, int index) {
  if (index >= 0 && index < num_configs(family) && config_name(family, index) == name) return index;
  return -1;
}

bool add_tuned_plan(const py::dict& fields, const py::dict& chosen, int capability, int sm_count) {
  const auto family = parse<Family>("family", chosen["family"].cast<std::string>(), kFamilies);
  const int config =
      index_of(family, chosen["name"].cast<std::string>(), chosen["index"].cast<int>());
  GemmPlan plan = plan_from_numbers(family, config, chosen["splits"].cast<int>(),
                                    chosen["swizzle"].cast<int>());
  plan.expected_us = chosen["us"].cast<double>();
  if (plan.config < 0) return false;
  return set_tuned_plan(tuned_key(parse_problem(fields), {capability, sm_count}), plan);
}

// NOTE: never released; the interpreter may be gone before this library is.
py::object* g_loader = nullptr;

void call_loader() {
  if (!Py_IsInitialized()) return;
  const py::gil_scoped_acquire gil;
  try {
    (*g_loader)();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("fusedops: loading the tuned plans");
  }
}

void set_loader(const py::object& loader) {
  delete std::exchange(g_loader, new py::object(loader));
  set_tuned_loader(&call_loader);
}

py::list recorded_gemms() {
  py::list found;
  for (const RecordedGemm& gemm : stop_recording()) {
    found.append(
        py::make_tuple(describe(gemm.problem), gemm.device.capability, gemm.device.sm_count));
  }
  return found;
}

}  // namespace

void bind_gemm(py::module_& m) {
  m.def("enums", &enums,
        "The names of each enum's values, in their order: a name's position is its code.");
  m.def("gemm_configs", &gemm_configs, "Every GEMM tile configuration that selection knows.");
  m.def(
      "select_config", &select_config, "m"_a, "n"_a, "k"_a, "dtype"_a = "bfloat16", py::kw_only(),
      "epilogue"_a = "fused", "a_major"_a = "k", "b_major"_a = "k", "math"_a = "native",
      "activation"_a = 0, "aligned"_a = true, "capability"_a = 90, "sm_count"_a = 132,
      "(chosen or None, candidates) for act(a (m, k) @ b (k, n)) with dense operands; a candidate "
      "that cannot run says why under 'rejected'.");
  m.def(
      "stream_k_tail",
      [](int64_t tiles, int64_t slots, int64_t k_steps) {
        const StreamKTail tail = stream_k_tail(tiles, slots, k_steps);
        return py::make_tuple(tail.helpers, tail.parts, tail.part_steps);
      },
      "tiles"_a, "slots"_a, "k_steps"_a,
      "(helpers, parts of a tile that they take, steps of K of a part) where a last wave of "
      "`tiles` "
      "leaves CTAs without a tile.");
  def_call(m, "prepare_gemm", &prepare_gemm,
           "The problem that the kernels see for strided operands a and b, given as (row stride, "
           "column stride, address), and why one of them is packed.");
  def_call(m, "thin_gemm", &thin_gemm,
           "Whether a streaming kernel takes this product ('takes'), its name and expected time "
           "and that of the other kernels; else why none of them can run.");
  def_call(m, "unaligned_gemm", &unaligned_gemm,
           "The same of the kernels that read 16-bit operands which begin anywhere and, on Hopper, "
           "of fp32 over parts, with their slices of K ('splits') and why an operand is packed.");
  m.def("narrow_backward", &narrow_backward, "m"_a, "n"_a, "k"_a, py::kw_only(), "x"_a, "weight"_a,
        "dtype"_a, "activation"_a, "dx"_a, "dweight"_a, "dbias"_a, "capability"_a, "sm_count"_a,
        "Whether one kernel forms these gradients of a linear layer, for a dense dy.");
  m.def(
      "plan_gemm", &plan_gemm, "problem"_a, "capability"_a, "sm_count"_a,
      "The plan that a call takes ('chosen'), the one from tuning and the one from selection, and "
      "every candidate.");
  m.def("add_tuned_plan", &add_tuned_plan, "problem"_a, "plan"_a, "capability"_a, "sm_count"_a,
        "Prefer a measured plan; False when this build has no such kernel or tile order.");
  m.def("clear_tuned_plans", &clear_tuned_plans, "Forget every measured plan.");
  m.def("set_tuned_loader", &set_loader, "loader"_a,
        "Call loader() once, when a product first needs the measured plans.");
  m.def("start_recording", &start_recording, "Note every problem that selection is asked for.");
  m.def("stop_recording", &recorded_gemms, "[(problem, capability, sm_count)] noted since start.");
}

}  // namespace fusedops
