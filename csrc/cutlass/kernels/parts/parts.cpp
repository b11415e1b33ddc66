#include "csrc/cutlass/kernels/parts/parts.h"

namespace fusedops::parts {

namespace {
RunFn g_run;  // NOTE: null before any dynamic initialiser runs
}

bool register_kernels(RunFn run) {
  g_run = run;
  return true;
}

const char* multiply(int tile, const GemmProblem& problem, const LaunchContext& context) {
  if (const char* reason = unaligned::refusal(problem)) return reason;
  if (!g_run) return "this build has no code for sm_90a";
  return g_run(tile, problem, context);
}

}  // namespace fusedops::parts
