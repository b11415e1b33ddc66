#include "csrc/cutlass/kernels/sm80/sm80_gemm.cuh"

namespace fusedops::sm80 {
namespace {

const bool registered_128x64 = register_config<kHalf128x64, DType::kFloat16, MathMode::kNative>();
const bool registered_64x128 = register_config<kHalf64x128, DType::kFloat16, MathMode::kNative>();
const bool registered_64x64 = register_config<kHalf64x64, DType::kFloat16, MathMode::kNative>();

}  // namespace
}  // namespace fusedops::sm80
