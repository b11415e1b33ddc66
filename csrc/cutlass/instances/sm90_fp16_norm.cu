#include "csrc/cutlass/kernels/sm90/sm90_gemm.cuh"

namespace fusedops::sm90 {

static const bool registered_0 = register_range<DType::kFloat16, MathMode::kNative, Major::kK,
                                                Major::kK, Epilogue::kNorm, 0, kNumSm90Configs>();

}  // namespace fusedops::sm90
