#include "csrc/cutlass/kernels/fp8/sm90_fp8_gemm.cuh"

namespace fusedops::fp8 {

static const bool registered =
    register_kernels(false, DType::kFloat16,
                     &Family<cutlass::float_e4m3_t, cutlass::float_e4m3_t, cutlass::half_t>::run);

}  // namespace fusedops::fp8
