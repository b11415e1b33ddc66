#include "csrc/cutlass/kernels/unaligned/unaligned.cuh"
#include "csrc/cutlass/kernels/unaligned/unaligned.h"

namespace fusedops::unaligned {

namespace {
RunFn g_hopper;  // NOTE: null before any dynamic initialiser runs
}

bool register_hopper(RunFn run) {
  g_hopper = run;
  return true;
}

const char* multiply_bf16(int tile, const GemmProblem& problem, const LaunchContext& context) {
  return launch_any<__nv_bfloat16>(tile, problem, context);
}

const char* multiply(int tile, const GemmProblem& problem, const LaunchContext& context) {
  if (const char* reason = refusal(problem)) return reason;
  if (is_hopper(problem.dtype, tile)) {
    if (!g_hopper) return "this build has no code for sm_90a";
    return g_hopper(tile - kNumTiles, problem, context);
  }
  return problem.dtype == DType::kFloat16 ? multiply_fp16(tile, problem, context)
                                          : multiply_bf16(tile, problem, context);
}

}  // namespace fusedops::unaligned
