#include "csrc/cutlass/launch/thin_gemm.h"

#include "csrc/cutlass/kernels/thin/thin.h"
#include "csrc/cutlass/passes/act_backward.h"
#include "csrc/cutlass/select/thin_plan.h"

namespace fusedops {
namespace {

const char* launch_rows(const ThinPlan& plan, const GemmProblem& p, const LaunchScope& scope) {
  thin::Rows rows = plan.rows;
  rows.bias = p.bias;
  rows.d = p.d;
  rows.preact = p.epilogue == Epilogue::kPreact ? p.preact : nullptr;
  rows.activation = p.activation;
  const auto multiply =
      plan.kernel == ThinKernel::kWide ? thin::multiply_wide : thin::multiply_rows;
  return multiply(rows, scope.context());
}

const char* launch_sums(const ThinPlan& plan, const GemmProblem& p, const LaunchScope& scope) {
  thin::Sums sums = plan.sums;
  const int64_t floats = thin::partial_floats(sums, scope.facts().sm_count);
  const Tensor partial = workspace(floats * 4, scope);
  sums.partial = static_cast<float*>(partial.mutable_data_ptr());
  if (const char* failure = thin::add_rows(sums, scope.context())) return failure;
  const int64_t width = p.m * p.n;
  return column_sum(sums.partial, floats / width, width, p.d,
                    sums.fp32_out ? DType::kFloat32 : p.dtype, scope.context());
}

const char* launch_dots(const ThinPlan& plan, const GemmProblem& p, const LaunchScope& scope) {
  thin::Dots dots = plan.dots;
  dots.bias = p.bias;
  dots.d = p.d;
  dots.preact = p.epilogue == Epilogue::kPreact ? p.preact : nullptr;
  dots.activation = p.activation;
  return thin::multiply_row(dots, plan.dots_plan, scope.context());
}

const char* launch_thin(const ThinPlan& plan, const GemmProblem& p, const LaunchScope& scope) {
  switch (plan.kernel) {
    case ThinKernel::kRows:
    case ThinKernel::kWide: return launch_rows(plan, p, scope);
    case ThinKernel::kSums: return launch_sums(plan, p, scope);
    case ThinKernel::kDots: break;
  }
  return launch_dots(plan, p, scope);
}

}  // namespace

bool run_thin(const GemmCall& call, const GemmProblem& p, const LaunchScope& scope) {
  const DeviceModel device = device_model(scope);
  const ThinPlan plan = plan_thin(call.a, call.b, p, device);
  if (!thin_takes(plan, call.a, call.b, p, device)) return false;
  const char* failure = launch_thin(plan, p, scope);
  FUSEDOPS_CHECK(failure == nullptr, call.op, ": the launch failed: ", failure);
  return true;
}

GemmProblem plain_problem(const GemmCall& call) {
  GemmProblem p;
  p.m = call.a.rows;
  p.n = p.ldd = call.b.cols;
  p.k = call.a.cols;
  p.epilogue = call.epilogue;
  p.accumulate = call.accumulate;
  p.dtype = call.dtype;
  if (call.dtype == DType::kFloat32) p.math = call.allow_tf32 ? MathMode::kTf32 : MathMode::kFp32;
  return p;
}

bool takes_thin(const GemmCall& call, const LaunchScope& scope) {
  const GemmProblem p = plain_problem(call);
  const DeviceModel device = device_model(scope);
  return thin_takes(plan_thin(call.a, call.b, p, device), call.a, call.b, p, device);
}

}  // namespace fusedops
