#include "csrc/cutlass/launch/unaligned_gemm.h"

#include "csrc/cutlass/kernels/parts/parts.h"
#include "csrc/cutlass/kernels/unaligned/unaligned.h"
#include "csrc/cutlass/launch/thin_gemm.h"
#include "csrc/cutlass/passes/splitk_reduce.h"
#include "csrc/cutlass/select/split_k.h"
#include "csrc/cutlass/select/thin_plan.h"
#include "csrc/cutlass/select/time_model.h"
#include "csrc/cutlass/select/unaligned_plan.h"

namespace fusedops {
namespace {

const char* launch_tile(int tile, const GemmProblem& p, const LaunchContext& context) {
  return p.dtype == DType::kFloat32 ? parts::multiply(tile, p, context)
                                    : unaligned::multiply(tile, p, context);
}

const char* launch(const UnalignedPlan& plan, const GemmCall& call, const LaunchScope& scope) {
  GemmProblem p = plan.problem;
  Tensor a, b;  // copies
  if (plan.pack_a) p.a = packed_operand(call.op, call.dtype, call.a, a, scope);
  if (plan.pack_b) p.b = packed_operand(call.op, call.dtype, call.b.transposed(), b, scope);
  if (plan.slices == 1) return launch_tile(plan.tile, p, scope.context());
  GemmProblem slices = in_slices(p, plan.slices);
  const Tensor partial = workspace(slices.slices * p.m * p.n * 4, scope);
  slices.d = partial.mutable_data_ptr();
  if (const char* failure = launch_tile(plan.tile, slices, scope.context())) return failure;
  return splitk_reduce(p, static_cast<const float*>(partial.const_data_ptr()), slices.slices,
                       scope.context());
}

}  // namespace

bool run_unaligned(const GemmCall& call, const GemmProblem& problem, const LaunchScope& scope) {
  const DeviceModel device = device_model(scope);
  const UnalignedPlan plan = plan_unaligned(call.a, call.b, problem, device);
  if (!unaligned_takes(plan, call.a, call.b, problem, device)) return false;
  const char* failure = launch(plan, call, scope);
  FUSEDOPS_CHECK(failure == nullptr, call.op, ": the launch failed: ", failure);
  return true;
}

bool reads_in_place(const GemmCall& call, const LaunchScope& scope) {
  const DeviceModel device = device_model(scope);
  const GemmProblem p = plain_problem(call);
  if (!plan_operands(call.a, call.b, p, device).pack_a || takes_thin(call, scope)) return true;
  const UnalignedPlan plan = plan_unaligned(call.a, call.b, p, device);
  return unaligned_takes(plan, call.a, call.b, p, device);
}

bool takes_apart(const GemmCall& call, Epilogue epilogue, Passes passes, const LaunchScope& scope) {
  const DeviceModel device = device_model(scope);
  GemmProblem p = plain_problem(call);
  p.epilogue = Epilogue::kFused;
  const UnalignedPlan plan = plan_unaligned(call.a, call.b, p, device);
  if (plan.rejected) return false;
  const double bytes = passes.matrices * double(p.m) * p.n * dtype_bytes(p.dtype);
  const double us = plan.expected_us + passes.launches * kLaunchUs + bytes / kDramBytesPerUs;
  p.epilogue = epilogue;
  p.activation = call.activation;
  return us < gemm_us(call.a, call.b, p, device);
}

void run_unaligned_tile(const GemmCall& call, int tile, int slices, const Tensor& d,
                        const Tensor* preact, const LaunchScope& scope) {
  UnalignedPlan plan;
  plan.tile = tile;
  plan.slices = slices;
  GemmProblem& p = plan.problem = plain_problem(call);
  const char* refusal = unaligned::refusal(p);
  FUSEDOPS_CHECK(refusal == nullptr, call.op, ": no such kernel runs this product: ", refusal);
  FUSEDOPS_CHECK(slices_allowed(p, slices), call.op, ": K = ", p.k, " has no ", slices, " slices");
  FUSEDOPS_CHECK(natural_operand(call.a, p.a) && natural_operand(call.b.transposed(), p.b), call.op,
                 ": neither stride of an operand is 1");
  p.d = d.mutable_data_ptr();
  p.preact = preact ? preact->mutable_data_ptr() : nullptr;
  p.bias = call.bias ? call.bias->const_data_ptr() : nullptr;
  p.activation = call.activation;
  const char* failure = launch(plan, call, scope);
  FUSEDOPS_CHECK(failure == nullptr, call.op, ": the launch failed: ", failure);
}

}  // namespace fusedops
