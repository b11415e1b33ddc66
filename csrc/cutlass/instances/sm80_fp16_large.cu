#include "csrc/cutlass/kernels/sm80/sm80_gemm.cuh"

namespace fusedops::sm80 {
namespace {

const bool registered_128x256 = register_config<kHalf128x256, DType::kFloat16, MathMode::kNative>();
const bool registered_256x128 = register_config<kHalf256x128, DType::kFloat16, MathMode::kNative>();
const bool registered_128x128 = register_config<kHalf128x128, DType::kFloat16, MathMode::kNative>();

}  // namespace
}  // namespace fusedops::sm80
