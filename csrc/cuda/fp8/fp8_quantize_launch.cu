#include "csrc/common/device/column_sums.cuh"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/fp8/fp8_hidden.h"

namespace fusedops {

// In fp8_quantize_<dtype>.cu.
cudaError_t launch_fp8_quantize_fp16(const Fp8Quantize&, bool, const LaunchContext&);
cudaError_t launch_fp8_quantize_bf16(const Fp8Quantize&, bool, const LaunchContext&);
cudaError_t launch_fp8_quantize_fp32(const Fp8Quantize&, bool, const LaunchContext&);

// In fp8_rows_<dtype>.cu and fp8_hidden_<dtype>.cu.
cudaError_t launch_fp8_rows_fp16(const Fp8Quantize&, const LaunchContext&);
cudaError_t launch_fp8_rows_bf16(const Fp8Quantize&, const LaunchContext&);
cudaError_t launch_fp8_rows_fp32(const Fp8Quantize&, const LaunchContext&);
cudaError_t launch_fp8_hidden_fp16(const Fp8Hidden&, const LaunchContext&);
cudaError_t launch_fp8_hidden_bf16(const Fp8Hidden&, const LaunchContext&);

const char* launch_fp8_rows(const Fp8Quantize& problem, const LaunchContext& context) {
  const auto launch = problem.dtype == DType::kFloat16    ? launch_fp8_rows_fp16
                      : problem.dtype == DType::kBFloat16 ? launch_fp8_rows_bf16
                                                          : launch_fp8_rows_fp32;
  const cudaError_t status = launch(problem, context);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

const char* launch_fp8_hidden(const Fp8Hidden& problem, const LaunchContext& context) {
  const bool fp16 = problem.gradient.dtype == DType::kFloat16;
  const cudaError_t status =
      fp16 ? launch_fp8_hidden_fp16(problem, context) : launch_fp8_hidden_bf16(problem, context);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

const char* launch_fp8_quantize(const Fp8Quantize& problem, bool maxima_only,
                                const LaunchContext& context) {
  const auto launch = problem.dtype == DType::kFloat16    ? launch_fp8_quantize_fp16
                      : problem.dtype == DType::kBFloat16 ? launch_fp8_quantize_bf16
                                                          : launch_fp8_quantize_fp32;
  const cudaError_t status = launch(problem, maxima_only, context);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

const char* launch_fp8_sums(const float* partial, int64_t rows, int64_t columns, void* out,
                            DType dtype, const LaunchContext& context) {
  const cudaError_t status = dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using Out = DeviceType<D>;
    return launch_kernel(column_sum_kernel<float, Out>, dim3(ceil_div(columns, kColumnSumX)),
                         dim3(kColumnSumX, kColumnSumY), 0,
                         static_cast<cudaStream_t>(context.stream), context.overlap, partial,
                         static_cast<Out*>(out), rows, columns);
  });
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace fusedops
