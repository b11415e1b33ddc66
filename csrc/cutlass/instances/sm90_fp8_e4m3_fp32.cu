#include "csrc/cutlass/kernels/fp8/sm90_fp8_gemm.cuh"

namespace fusedops::fp8 {

static const bool registered = register_kernels(
    false, DType::kFloat32, &Family<cutlass::float_e4m3_t, cutlass::float_e4m3_t, float>::run);

}  // namespace fusedops::fp8
