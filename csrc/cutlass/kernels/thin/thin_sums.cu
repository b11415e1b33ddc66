#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cutlass/kernels/thin/thin.h"
#include "csrc/cutlass/kernels/thin/thin_sums.cuh"

namespace fusedops::thin {
namespace {

template <class Owned>
const char* launch(const Sums& p, const SumsPlan& plan, const LaunchContext& context) {
  constexpr auto kKernel = &sums_kernel<Owned>;
  using T = typename Owned::T;
  cudaError_t status = allow_any_shared_memory<kKernel>();
  if (status == cudaSuccess) {
    const dim3 grid(unsigned(sums_slots(plan, p.m, context.sm_count)),
                    unsigned(plan.blocks_n * plan.blocks_k));
    const SumsParams params{.a = make_source<T>(p.a, p.m, p.n, plan.a),
                            .b = make_source<T>(p.b, p.m, p.k, plan.b),
                            .plan = plan,
                            .m = p.m,
                            .n = int(p.n),
                            .k = int(p.k),
                            .partial = p.partial};
    status = launch_kernel(kKernel, grid, dim3(kSumThreads), size_t(plan.bytes()),
                           static_cast<cudaStream_t>(context.stream), context.overlap, params);
  }
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

template <class T>
const char* launch_half(const Sums& p, const SumsPlan& plan, const LaunchContext& context) {
  return dispatch(Choices<16, 32>{}, plan.own_n, [&]<int kOwnN>(Tag<kOwnN>) {
    return dispatch(Choices<8, 16, 32, 64>{}, plan.own_k, [&]<int kOwnK>(Tag<kOwnK>) {
      return launch<MmaSums<T, kOwnN, kOwnK>>(p, plan, context);
    });
  });
}

}  // namespace

const char* add_rows(const Sums& p, const LaunchContext& context) {
  const SumsPlan plan = sums_plan(p.dtype, p.a, p.b, p.n, p.k);
  if (p.dtype == DType::kFloat16) return launch_half<__half>(p, plan, context);
  if (p.dtype == DType::kBFloat16) return launch_half<__nv_bfloat16>(p, plan, context);
  if (plan.own_n == 8) return launch<FmaSums<8, 4>>(p, plan, context);
  if (plan.own_k == 8) return launch<FmaSums<4, 8>>(p, plan, context);
  return launch<FmaSums<4, 4>>(p, plan, context);
}

}  // namespace fusedops::thin
