#include "csrc/cutlass/kernels/gated/sm90_gated.cuh"

namespace fusedops::sm90 {

static const bool registered = register_gated_products<DType::kBFloat16>();

}  // namespace fusedops::sm90
