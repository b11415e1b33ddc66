#include "csrc/cutlass/kernels/fp32/sm90_fp32_gemm.cuh"

namespace fusedops::sm90 {

static const bool registered_0 = register_fp32<MathMode::kFp32, Epilogue::kFused>();
static const bool registered_1 = register_fp32<MathMode::kFp32, Epilogue::kPreact>();

}  // namespace fusedops::sm90
