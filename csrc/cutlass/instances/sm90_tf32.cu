#include "cutlass/sm90_gemm.cuh"

namespace fusedops::sm90 {

static const bool registered_0 = register_range<DType::kFloat32, MathMode::kTf32, Major::kK,
                                                Major::kK, Epilogue::kFused, 0, kNumSm90Configs>();
static const bool registered_1 = register_range<DType::kFloat32, MathMode::kTf32, Major::kK,
                                                Major::kK, Epilogue::kPreact, 0, kNumSm90Configs>();

}  // namespace fusedops::sm90
