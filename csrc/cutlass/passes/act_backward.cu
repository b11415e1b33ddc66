#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cutlass/passes/act_backward.cuh"
#include "csrc/cutlass/passes/act_backward.h"

namespace fusedops {
namespace {

// Whether every row allows accesses of 16 bytes.
bool vectorizable(const ActBackward& p) {
  const int64_t vec = 16 / dtype_bytes(p.dtype);
  const auto aligned = [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  };
  return p.cols % vec == 0 && p.dy_stride % vec == 0 && p.saved_stride % vec == 0 &&
         aligned(p.dy) && aligned(p.saved) && aligned(p.dz);
}

ColumnGrid grid_of(const ActBackward& p, int sm_count) {
  const int vec = vectorizable(p) ? static_cast<int>(16 / dtype_bytes(p.dtype)) : 1;
  return column_grid(p.rows, p.cols, vec, sm_count);
}

template <class T, int kVec, bool kWriteDz, Activation kActivation>
cudaError_t launch_main(const ActBackward& p, const ColumnGrid& grid,
                        const LaunchContext& context) {
  return launch_kernel(
      act_backward_kernel<T, kVec, kWriteDz, kActivation>, dim3(grid.col_blocks, grid.row_blocks),
      dim3(kColumnThreads), 0, static_cast<cudaStream_t>(context.stream), context.overlap,
      static_cast<const T*>(p.dy), static_cast<const T*>(p.saved), static_cast<T*>(p.dz),
      static_cast<Compute<T>*>(p.dbias ? p.partial : nullptr),
      ActBackwardShape{p.rows, p.cols, p.dy_stride, p.saved_stride}, grid.rows_per_block,
      grid.threads_x, p.activation);
}

template <class T, int kVec>
cudaError_t launch_main(const ActBackward& p, const ColumnGrid& grid,
                        const LaunchContext& context) {
  if (p.dz == nullptr) {
    return launch_main<T, kVec, false, Activation::kNone>(p, grid, context);
  }
  return dispatch_activation(p.activation, [&]<Activation A>(Tag<A>) {
    return launch_main<T, kVec, true, A>(p, grid, context);
  });
}

template <class C, class Out>
cudaError_t launch_sum(const C* partial, int64_t rows, int64_t cols, Out* out,
                       const LaunchContext& context) {
  return launch_kernel(column_sum_kernel<C, Out>, dim3(ceil_div(cols, kColumnSumX)),
                       dim3(kColumnSumX, kColumnSumY), 0, static_cast<cudaStream_t>(context.stream),
                       context.overlap, partial, out, rows, cols);
}

template <class T>
cudaError_t launch(const ActBackward& p, const LaunchContext& context) {
  constexpr int kVec = 16 / sizeof(T);
  const ColumnGrid grid = grid_of(p, context.sm_count);
  const bool vector = vectorizable(p);
  const cudaError_t status =
      vector ? launch_main<T, kVec>(p, grid, context) : launch_main<T, 1>(p, grid, context);
  if (status != cudaSuccess || p.dbias == nullptr) return status;
  const auto* partial = static_cast<const Compute<T>*>(p.partial);
  if (p.dbias_fp32) {
    return launch_sum(partial, grid.row_blocks, p.cols, static_cast<float*>(p.dbias), context);
  }
  return launch_sum(partial, grid.row_blocks, p.cols, static_cast<T*>(p.dbias), context);
}

}  // namespace

int64_t act_backward_workspace(const ActBackward& p, int sm_count) {
  const int64_t bytes = p.dtype == DType::kFloat64 ? 8 : 4;
  return grid_of(p, sm_count).row_blocks * p.cols * bytes;
}

const char* column_sum(const float* partial, int64_t rows, int64_t cols, void* out, DType dtype,
                       const LaunchContext& context) {
  using Sums = Choices<DType::kFloat16, DType::kBFloat16, DType::kFloat32>;
  const cudaError_t status = dispatch(Sums{}, dtype, [&]<DType D>(Tag<D>) {
    return launch_sum(partial, rows, cols, static_cast<DeviceType<D>*>(out), context);
  });
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

const char* act_backward(const ActBackward& p, const LaunchContext& context) {
  const cudaError_t status =
      dispatch_dtype(p.dtype, [&]<DType D>(Tag<D>) { return launch<DeviceType<D>>(p, context); });
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace fusedops
