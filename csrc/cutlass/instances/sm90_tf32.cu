#include "csrc/cutlass/kernels/tf32/sm90_tf32_gemm.cuh"

namespace fusedops::sm90 {

static const bool registered_0 = register_tf32<Epilogue::kFused>();
static const bool registered_1 = register_tf32<Epilogue::kPreact>();

}  // namespace fusedops::sm90
