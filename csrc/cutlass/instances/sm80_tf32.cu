#include "csrc/cutlass/kernels/sm80/sm80_gemm.cuh"

namespace fusedops::sm80 {
namespace {

const bool registered_128x256 = register_config<kTf32_128x256, DType::kFloat32, MathMode::kTf32>();
const bool registered_128x128 = register_config<kTf32_128x128, DType::kFloat32, MathMode::kTf32>();
const bool registered_64x64 = register_config<kWord64x64, DType::kFloat32, MathMode::kTf32>();

}  // namespace
}  // namespace fusedops::sm80
