#include <initializer_list>

#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cutlass/passes/gated_act.cuh"
#include "csrc/cutlass/passes/gated_act.h"

namespace fusedops {
namespace {

// Whether every row allows accesses of 16 bytes.
bool vectorizable(DType dtype, std::initializer_list<int64_t> extents,
                  std::initializer_list<const void*> pointers) {
  for (const int64_t extent : extents) {
    if (extent % (16 / dtype_bytes(dtype)) != 0) return false;
  }
  for (const void* pointer : pointers) {
    if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) return false;
  }
  return true;
}

bool vectorizable(const GatedAct& p) {
  return vectorizable(p.dtype, {p.cols, p.gate_stride, p.up_stride}, {p.gate, p.up, p.h});
}

bool vectorizable(const GatedActBackward& p) {
  return vectorizable(p.dtype, {p.cols, p.gate_stride, p.up_stride, p.dgate_stride, p.dup_stride},
                      {p.dh, p.gate, p.up, p.dgate, p.dup, p.h});
}

template <class Problem>
ColumnGrid grid_of(const Problem& p, int sm_count) {
  const int vec = vectorizable(p) ? static_cast<int>(16 / dtype_bytes(p.dtype)) : 1;
  return column_grid(p.rows, p.cols, vec, sm_count);
}

template <class T, int kVec, bool kGated>
cudaError_t launch(const GatedAct& p, const LaunchContext& context) {
  const ColumnGrid grid = grid_of(p, context.sm_count);
  return launch_kernel(gated_act_kernel<T, kVec, kGated>, dim3(grid.col_blocks, grid.row_blocks),
                       dim3(kColumnThreads), 0, static_cast<cudaStream_t>(context.stream),
                       context.overlap, static_cast<const T*>(p.gate), static_cast<const T*>(p.up),
                       static_cast<T*>(p.h),
                       GatedActShape{p.rows, p.cols, p.gate_stride, p.up_stride}, p.activation,
                       grid.rows_per_block, grid.threads_x);
}

template <class T, int kVec>
cudaError_t launch_main(const GatedActBackward& p, const ColumnGrid& grid,
                        const LaunchContext& context) {
  return launch_kernel(gated_act_backward_kernel<T, kVec>, dim3(grid.col_blocks, grid.row_blocks),
                       dim3(kColumnThreads), 0, static_cast<cudaStream_t>(context.stream),
                       context.overlap, static_cast<const T*>(p.dh), static_cast<const T*>(p.gate),
                       static_cast<const T*>(p.up), static_cast<T*>(p.dgate),
                       static_cast<T*>(p.dup), static_cast<T*>(p.h),
                       static_cast<Compute<T>*>(p.dbias ? p.partial : nullptr),
                       GatedActShape{p.rows, p.cols, p.gate_stride, p.up_stride},
                       GatedActShape{p.rows, p.cols, p.dgate_stride, p.dup_stride}, p.activation,
                       grid.rows_per_block, grid.threads_x);
}

template <class T, class Out>
cudaError_t launch_sum(const GatedActBackward& p, const ColumnGrid& grid,
                       const LaunchContext& context) {
  return launch_kernel(column_sum_kernel<Compute<T>, Out>, dim3(ceil_div(2 * p.cols, kColumnSumX)),
                       dim3(kColumnSumX, kColumnSumY), 0, static_cast<cudaStream_t>(context.stream),
                       context.overlap, static_cast<const Compute<T>*>(p.partial),
                       static_cast<Out*>(p.dbias), grid.row_blocks, 2 * p.cols);
}

template <class T>
cudaError_t launch(const GatedActBackward& p, const LaunchContext& context) {
  constexpr int kVec = 16 / sizeof(T);
  const ColumnGrid grid = grid_of(p, context.sm_count);
  const cudaError_t status = vectorizable(p) ? launch_main<T, kVec>(p, grid, context)
                                             : launch_main<T, 1>(p, grid, context);
  if (status != cudaSuccess || p.dbias == nullptr) return status;
  return p.dbias_fp32 ? launch_sum<T, float>(p, grid, context) : launch_sum<T, T>(p, grid, context);
}

const char* reason(cudaError_t status) {
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace

const char* gated_act(const GatedAct& p, const LaunchContext& context) {
  return reason(dispatch_dtype(p.dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    return dispatch_bool(p.up != nullptr, [&]<bool kGated>(Tag<kGated>) {
      return vectorizable(p) ? launch<T, 16 / sizeof(T), kGated>(p, context)
                             : launch<T, 1, kGated>(p, context);
    });
  }));
}

int64_t gated_act_workspace(const GatedActBackward& p, int sm_count) {
  const int64_t bytes = p.dtype == DType::kFloat64 ? 8 : 4;
  return grid_of(p, sm_count).row_blocks * 2 * p.cols * bytes;
}

const char* gated_act_backward(const GatedActBackward& p, const LaunchContext& context) {
  return reason(
      dispatch_dtype(p.dtype, [&]<DType D>(Tag<D>) { return launch<DeviceType<D>>(p, context); }));
}

}  // namespace fusedops
