#include "csrc/cutlass/launch/gemm_launch.h"

#include <limits>

#include "csrc/common/checks/batch_norm_check.h"
#include "csrc/common/int_math.h"
#include "csrc/cutlass/configs/alignment.h"
#include "csrc/cutlass/configs/operand_layout.h"
#include "csrc/cutlass/configs/registry.h"
#include "csrc/cutlass/configs/skinny_configs.h"
#include "csrc/cutlass/configs/sm90_configs.h"
#include "csrc/cutlass/launch/launch_memory.h"
#include "csrc/cutlass/launch/thin_gemm.h"
#include "csrc/cutlass/launch/unaligned_gemm.h"
#include "csrc/cutlass/passes/act_backward.h"
#include "csrc/cutlass/passes/moments.h"
#include "csrc/cutlass/passes/pack.h"
#include "csrc/cutlass/passes/splitk_reduce.h"
#include "csrc/cutlass/select/plan_cache.h"
#include "csrc/cutlass/select/sm90_plan.h"
#include "csrc/cutlass/select/split_k.h"

namespace fusedops {

DeviceModel device_model(const LaunchScope& scope) {
  const DeviceFacts& facts = scope.facts();
  // NOTE: a build without code for Hopper serves it from PTX of the sm_80 family.
  const bool from_ptx = facts.capability / 10 == 9 && facts.code_version < 90;
  return {from_ptx ? 80 : facts.capability, facts.sm_count};
}

namespace {

void check_launched(const char* op, const char* failure) {
  FUSEDOPS_CHECK(failure == nullptr, op, ": the launch failed: ", failure);
}

// ---- operands ----

GemmProblem problem_of(const GemmCall& call, const Tensor& d, const Tensor* preact) {
  GemmProblem p;
  p.m = call.a.rows;
  p.n = call.b.cols;
  p.k = call.a.cols;
  p.d = d.mutable_data_ptr();
  p.ldd = p.n;
  p.preact = preact ? preact->mutable_data_ptr() : nullptr;
  p.bias = call.bias ? call.bias->const_data_ptr() : nullptr;
  p.activation = call.activation;
  p.epilogue = call.epilogue;
  p.accumulate = call.accumulate;
  p.norm = call.norm;
  p.aux = call.residual ? call.residual->const_data_ptr() : nullptr;
  p.dtype = call.dtype;
  if (call.dtype == DType::kFloat32) p.math = call.allow_tf32 ? MathMode::kTf32 : MathMode::kFp32;
  return p;
}

// ---- launching a plan ----

void launch_kernel_of(const char* op, const GemmPlan& plan, const GemmProblem& p,
                      const LaunchScope& scope) {
  const GemmRunFn run =
      find_kernel({plan.family, plan.config, p.dtype, p.math, p.a.major, p.b.major, p.epilogue});
  FUSEDOPS_CHECK(run != nullptr, op, ": this build has no kernel '",
                 config_name(plan.family, plan.config),
                 "' for this problem; rebuild with "
                 "TORCH_CUDA_ARCH_LIST naming this GPU");
  const char* failure = run(p, scope.context());
  FUSEDOPS_CHECK(failure == nullptr, op, ": kernel '", config_name(plan.family, plan.config),
                 "' did not run: ", failure);
}

// K in slices; each writes fp32 partial sums that are added in order.
void launch_split(const char* op, const GemmPlan& plan, const GemmProblem& p,
                  const LaunchScope& scope) {
  GemmProblem slices = in_slices(p, plan.slices);
  const Tensor partial = workspace(slices.slices * p.m * p.n * 4, scope);
  slices.d = partial.mutable_data_ptr();
  launch_kernel_of(op, plan, slices, scope);
  check_launched(op, splitk_reduce(p, static_cast<const float*>(partial.const_data_ptr()),
                                   slices.slices, scope.context()));
}

void launch_plan(const char* op, const GemmPlan& plan, GemmProblem p, const LaunchScope& scope) {
  FUSEDOPS_CHECK(plan.config >= 0, op, ": no kernel takes this problem: M = ", p.m, ", N = ", p.n,
                 ", K = ", p.k);
  p.raster_width = plan.raster_width;
  p.shared_tiles = plan.shared_tiles;
  Tensor exchanged;
  if (plan.k_split == KSplit::kTail) {
    const GemmConfig& tile = config_of(plan.family, plan.config);
    exchanged = make_exchange_space(int64_t{tile.tile_m} * tile.tile_n, scope, p.exchange);
  } else if (wants_dynamic_schedule(p, plan, device_model(scope))) {
    exchanged = make_tile_counter(scope, p.exchange);
  }
  // NOTE: only WGMMA kernels add to d themselves.
  if (plan.k_split == KSplit::kSlices || (p.accumulate && plan.family != Family::kSm90)) {
    launch_split(op, plan, p, scope);
  } else {
    launch_kernel_of(op, plan, p, scope);
  }
}

// ---- preparing operands ----

struct Prepared {
  GemmProblem problem;
  Tensor a, b;     // packed copies, where they were needed
  Tensor d, bias;  // padded ones, where d leaves through such rows
};

// Memory for padded rows of d, and the bias in a row of as many zeros.
void pad_result(const GemmCall& call, Prepared& prepared, const LaunchScope& scope) {
  GemmProblem& p = prepared.problem;
  const int64_t bytes = dtype_bytes(p.dtype);
  prepared.d = workspace(p.m * p.ldd * bytes, scope);
  p.d = prepared.d.mutable_data_ptr();
  if (!call.bias) return;
  const MatrixView row{call.bias->const_data_ptr(), 1, p.n, p.n, 1};
  p.bias = packed_operand(call.op, call.dtype, row, prepared.bias, scope).data;
}

Prepared prepare(const GemmCall& call, const GemmProblem& p, const LaunchScope& scope) {
  const OperandPlan plan = plan_operands(call.a, call.b, p, device_model(scope));
  Prepared prepared{plan.problem};
  const auto packed = [&](const MatrixView& view, Tensor& holder) {
    return packed_operand(call.op, call.dtype, view, holder, scope);
  };
  if (plan.pack_a) prepared.problem.a = packed(call.a, prepared.a);
  if (plan.pack_b) prepared.problem.b = packed(call.b.transposed(), prepared.b);
  if (plan.pads_d) pad_result(call, prepared, scope);
  return prepared;
}

// Launches the plan, and what brings padded rows to where `p` wants them.
void launch_prepared(const GemmCall& call, const GemmPlan& plan, const Prepared& prepared,
                     const GemmProblem& p, const LaunchScope& scope) {
  launch_plan(call.op, plan, prepared.problem, scope);
  if (!prepared.d.defined()) return;
  const PackSource padded{prepared.d.const_data_ptr(), p.m, p.n, prepared.problem.ldd, 1};
  check_launched(call.op, unpack_rows(padded, p.d, scope.context()));
}

// Whether the result needs no product: d is empty, or it is act(bias), which this launches.
bool launch_without_product(const GemmCall& call, const GemmProblem& p, const LaunchScope& scope) {
  if (p.m == 0 || p.n == 0) return true;
  if (p.k > 0) return false;
  check_launched(call.op, splitk_reduce(p, nullptr, 0, scope.context()));
  return true;
}

}  // namespace

GemmOperand packed_operand(const char* op, DType dtype, const MatrixView& view, Tensor& holder,
                           const LaunchScope& scope) {
  const int64_t bytes = dtype_bytes(dtype);
  const int64_t ld = packed_ld(view.cols, bytes);
  holder = workspace(view.rows * ld * bytes, scope);
  const PackSource source{view.data, view.rows, view.cols, view.row_stride, view.col_stride};
  check_launched(
      op, pack_operand(source, bytes, holder.mutable_data_ptr(), view.rows, ld, scope.context()));
  return {holder.const_data_ptr(), ld, Major::kK};
}

MatrixView rows_view(const Tensor& tensor, Tensor& holder) {
  holder = tensor;
  const int64_t dims = tensor.dim();
  const int64_t rows = leading_numel(tensor), cols = tensor.size(dims - 1);
  const auto collapses = [&] {
    int64_t expected = -1;  // the stride that dimension i must have, once one is known
    for (int64_t i = dims - 2; i >= 0; --i) {
      if (tensor.size(i) == 1) continue;
      if (expected >= 0 && tensor.stride(i) != expected) return int64_t{-1};
      expected = tensor.stride(i) * tensor.size(i);
    }
    return int64_t{0};
  };
  if (rows > 0 && cols > 0 && collapses() < 0) holder = dense(tensor);
  int64_t row_stride = cols;
  for (int64_t i = dims - 2; i >= 0; --i) {
    if (holder.size(i) == 1) continue;
    row_stride = holder.stride(i);
    break;
  }
  return {holder.const_data_ptr(), rows, cols, row_stride, cols == 1 ? 1 : holder.stride(dims - 1)};
}

bool are_addressable(const MatrixView& view, DType dtype, const LaunchScope& scope) {
  const bool aligned = aligned16(view.data) && view.row_stride % 8 == 0;
  return dtype_bytes(dtype) != 2 || aligned || view.col_stride != 1 ||
         view.rows <= skinny::kMaxRows || view.cols == 0 || !device_model(scope).hopper();
}

MatrixView padded_rows(const MatrixView& view, DType dtype) {
  return {nullptr, view.rows, view.cols, packed_ld(view.cols, dtype_bytes(dtype)), 1};
}

MatrixView addressable_rows(const char* op, const MatrixView& view, DType dtype, Tensor& holder,
                            const LaunchScope& scope) {
  if (are_addressable(view, dtype, scope)) return view;
  const GemmOperand copy = packed_operand(op, dtype, view, holder, scope);
  return {copy.data, view.rows, view.cols, copy.ld, 1};
}

void run_gemm(const GemmCall& call, const Tensor& d, const Tensor* preact,
              const LaunchScope& scope) {
  const GemmProblem p = problem_of(call, d, preact);
  if (launch_without_product(call, p, scope)) return;
  if (run_unaligned(call, p, scope) || run_thin(call, p, scope)) return;
  const Prepared prepared = prepare(call, p, scope);
  const GemmPlan plan = select_gemm_cached(prepared.problem, device_model(scope));
  FUSEDOPS_CHECK(plan.config >= 0 || p.k <= std::numeric_limits<int32_t>::max(), call.op,
                 ": K must be at most 2^31 - 1; got ", p.k);
  launch_prepared(call, plan, prepared, p, scope);
}

bool run_gemm_gradient(const GemmCall& call, const GradientOutputs& outputs,
                       const LaunchScope& scope) {
  GemmProblem p = problem_of(call, *outputs.dz, nullptr);
  p.epilogue = Epilogue::kGrad;
  p.aux = outputs.saved ? outputs.saved->const_data_ptr() : nullptr;
  p.hidden = outputs.hidden ? outputs.hidden->mutable_data_ptr() : nullptr;
  if (p.m == 0 || p.n == 0 || p.k == 0) return false;
  const Prepared prepared = prepare(call, p, scope);
  const GemmPlan plan = select_gemm_cached(prepared.problem, device_model(scope));
  if (plan.config < 0) return false;
  p = prepared.problem;
  Tensor sums;
  const int64_t rows = ceil_div(p.m, summed_rows(plan));
  if (outputs.dbias) {
    sums = workspace(rows * p.n * 4, scope);
    p.column_sums = static_cast<float*>(sums.mutable_data_ptr());
  }
  launch_plan(call.op, plan, p, scope);
  if (outputs.dbias) {
    const bool fp32 = outputs.dbias->scalar_type() == ScalarType::Float;
    check_launched(call.op, column_sum(p.column_sums, rows, p.n, outputs.dbias->mutable_data_ptr(),
                                       fp32 ? DType::kFloat32 : p.dtype, scope.context()));
  }
  return true;
}

bool run_gemm_moments(const GemmCall& call, const Tensor& d, const Tensor& moments,
                      const LaunchScope& scope) {
  GemmProblem p = problem_of(call, d, nullptr);
  p.epilogue = Epilogue::kMoments;
  if (p.m == 0 || p.n == 0 || p.k == 0 || dtype_bytes(p.dtype) != 2) return false;
  const Prepared prepared = prepare(call, p, scope);
  const GemmPlan plan = select_gemm_cached(prepared.problem, device_model(scope));
  if (plan.config < 0) return false;
  p = prepared.problem;
  const int64_t rows = summed_rows(plan);
  const Tensor partial = workspace(ceil_div(p.m, rows) * p.n * 8, scope);
  p.column_sums = static_cast<float*>(partial.mutable_data_ptr());
  launch_plan(call.op, plan, p, scope);
  check_launched(call.op, join_moments({p.column_sums, p.m, p.n, rows, kMomentRows,
                                        static_cast<double*>(moments.mutable_data_ptr())},
                                       scope.context()));
  return true;
}

bool run_gemm_fused(const GemmCall& call, const Tensor& d, const LaunchScope& scope) {
  const GemmProblem p = problem_of(call, d, nullptr);
  if (p.m == 0 || p.n == 0 || p.k == 0 || dtype_bytes(p.dtype) != 2) return false;
  const Prepared prepared = prepare(call, p, scope);
  const GemmPlan plan = select_gemm_cached(prepared.problem, device_model(scope));
  if (plan.config < 0) return false;
  launch_plan(call.op, plan, prepared.problem, scope);
  return true;
}

bool run_gemm_adding(const GemmCall& call, const Tensor& d, const LaunchScope& scope) {
  GemmProblem p = problem_of(call, d, nullptr);
  p.accumulate = true;
  if (p.m == 0 || p.n == 0 || p.k == 0 || dtype_bytes(p.dtype) != 2) return false;
  const Prepared prepared = prepare(call, p, scope);
  p = prepared.problem;
  if (!adds_halves(p.epilogue, p.a.major, p.b.major)) return false;
  const GemmPlan plan = select_gemm_cached(p, device_model(scope));
  if (plan.config < 0 || plan.family != Family::kSm90) return false;
  launch_plan(call.op, plan, p, scope);
  return true;
}

void run_gemm_with_plan(const GemmCall& call, const GemmPlan& plan, const Tensor& d,
                        const Tensor* preact, const LaunchScope& scope) {
  const GemmProblem p = problem_of(call, d, preact);
  if (launch_without_product(call, p, scope)) return;
  launch_prepared(call, plan, prepare(call, p, scope), p, scope);
}

}  // namespace fusedops
