#include "csrc/cutlass/kernels/sm80/sm80_gemm.cuh"

namespace fusedops::sm80 {
namespace {

const bool registered_128x64 = register_config<kFp64_128x64, DType::kFloat64, MathMode::kNative>();
const bool registered_64x64 = register_config<kWord64x64, DType::kFloat64, MathMode::kNative>();

}  // namespace
}  // namespace fusedops::sm80
