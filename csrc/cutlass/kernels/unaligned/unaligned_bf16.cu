#include "csrc/cutlass/kernels/unaligned/unaligned.cuh"
#include "csrc/cutlass/kernels/unaligned/unaligned.h"

namespace fusedops::unaligned {

namespace {
// NOTE: null before any dynamic initialiser runs.
RunFn g_hopper, g_hopper_parts;
}  // namespace

bool register_hopper(RunFn run) {
  g_hopper = run;
  return true;
}

bool register_hopper_parts(RunFn run) {
  g_hopper_parts = run;
  return true;
}

const char* multiply_bf16(int tile, const GemmProblem& problem, const LaunchContext& context) {
  return launch_any<__nv_bfloat16>(tile, problem, context);
}

const char* multiply(int tile, const GemmProblem& problem, const LaunchContext& context) {
  if (const char* reason = refusal(problem)) return reason;
  if (is_hopper(problem.dtype, tile)) {
    const RunFn run = problem.dtype == DType::kFloat32 ? g_hopper_parts : g_hopper;
    if (!run) return "this build has no code for sm_90a";
    return run(tile - first_hopper(problem.dtype), problem, context);
  }
  if (problem.dtype == DType::kFloat32) return multiply_fp32(tile, problem, context);
  return problem.dtype == DType::kFloat16 ? multiply_fp16(tile, problem, context)
                                          : multiply_bf16(tile, problem, context);
}

}  // namespace fusedops::unaligned
