#include "csrc/common/dispatch.h"
#include "csrc/cutlass/configs/alignment.h"
#include "csrc/cutlass/kernels/thin/thin.h"
#include "csrc/cutlass/kernels/thin/thin_grid.cuh"
#include "csrc/cutlass/kernels/thin/thin_rows.cuh"

namespace fusedops::thin {
namespace {

template <class Item>
const char* launch(const Rows& p, const RowsPlan& plan, const LaunchContext& context) {
  constexpr auto kKernel = &rows_kernel<Item>;
  unsigned blocks = 0;
  cudaError_t status = grid_of<kKernel>(kThreads, plan.bytes(), ceil_div(p.m, plan.tile_rows),
                                        plan.parts, context, &blocks);
  if (status == cudaSuccess) {
    const RowsParams params{.x = make_source<typename Item::T>(p.x, p.m, p.k, plan.x),
                            .plan = plan,
                            .m = p.m,
                            .n = int(p.n),
                            .k = int(p.k),
                            .w = p.w,
                            .w_stride_n = p.w_stride_n,
                            .w_stride_k = p.w_stride_k,
                            .bias = p.bias,
                            .d = p.d,
                            .preact = p.preact,
                            .activation = p.activation,
                            .runs = plan.parts == 1 && aligned16(p.d) && aligned16(p.preact)};
    status = launch_kernel(kKernel, dim3(blocks), dim3(kThreads), size_t(plan.bytes()),
                           static_cast<cudaStream_t>(context.stream), context.overlap, params);
  }
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

template <class T>
const char* launch_half(const Rows& p, const RowsPlan& plan, const LaunchContext& context) {
  const bool pairs = !p.x.columns && lines_begin(p.x, sizeof(T), 4);
  return dispatch(Choices<8, 16, 32>{}, plan.group, [&]<int kGroup>(Tag<kGroup>) {
    return dispatch_bool(pairs, [&]<bool kPairs>(Tag<kPairs>) {
      return launch<MmaItem<T, kGroup, kPairs>>(p, plan, context);
    });
  });
}

}  // namespace

const char* multiply_rows(const Rows& p, const LaunchContext& context) {
  const RowsPlan plan = rows_plan(p.dtype, p.x, p.n, p.k);
  if (p.dtype == DType::kFloat16) return launch_half<__half>(p, plan, context);
  if (p.dtype == DType::kBFloat16) return launch_half<__nv_bfloat16>(p, plan, context);
  const bool vectors = plan.x.wide && !plan.x.flat && !p.x.columns;
  return dispatch(Choices<1, 2, 4, 8, 16>{}, plan.group, [&]<int kGroup>(Tag<kGroup>) {
    return dispatch_bool(vectors, [&]<bool kVectors>(Tag<kVectors>) {
      return launch<FmaItem<kGroup, kVectors>>(p, plan, context);
    });
  });
}

}  // namespace fusedops::thin
