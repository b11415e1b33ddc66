#include "csrc/cutlass/kernels/simt/simt_gemm.cuh"

namespace fusedops::simt {
namespace {

const bool registered_128x128 = register_config<sm80::kFp32_128x128>();
const bool registered_64x64 = register_config<sm80::kFp32_64x64>();
const bool registered_8x64 = register_config<sm80::kFp32_8x64>();
const bool registered_64x8 = register_config<sm80::kFp32_64x8>();

}  // namespace
}  // namespace fusedops::simt
