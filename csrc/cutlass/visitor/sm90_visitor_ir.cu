// One main loop for visitors, compiled to LTO-IR with FUSEDOPS_VISITOR_ELEMENT and _CONFIG, a
// number of kSm90Configs (cmake/Visitor.cmake).
#include "csrc/cutlass/kernels/visitor/sm90_visitor.cuh"

namespace fusedops::sm90 {

using Traits = VisitorTraits<FUSEDOPS_VISITOR_ELEMENT, FUSEDOPS_VISITOR_CONFIG>;

// What python/fusedops/_epilogue/launch.py writes and asks for.
static_assert(sizeof(VisitorParams) == 1280 && offsetof(VisitorParams, epilogue) == 256);
static_assert(offsetof(VisitorParams, schedule) == 768 &&
              offsetof(VisitorParams, arguments) == 1024 &&
              offsetof(VisitorParams, operand) == 896);
static_assert(offsetof(EpilogueParams, aux) == 128 && offsetof(EpilogueParams, bias) == 384);
static_assert(offsetof(EpilogueParams, store_hidden) == 417 && sizeof(TileSchedule) == 84);
static_assert(offsetof(VisitorArguments, vectors) == 64 &&
              offsetof(VisitorArguments, scalars) == 160);
static_assert(offsetof(VisitorArguments, num_vectors) == 192);
static_assert(Kernel<Traits>::kSharedBytes == (FUSEDOPS_VISITOR_CONFIG == 10   ? 228352
                                               : FUSEDOPS_VISITOR_CONFIG == 12 ? 222208
                                               : FUSEDOPS_VISITOR_CONFIG <= 1  ? 222208
                                               : FUSEDOPS_VISITOR_CONFIG == 13 ? 214016
                                                                               : 224256));

}  // namespace fusedops::sm90

extern "C" __global__ void __launch_bounds__(fusedops::sm90::kThreads<fusedops::sm90::Traits>, 1)
    fusedops_visitor(const __grid_constant__ fusedops::sm90::VisitorParams params) {
  extern __shared__ __align__(1024) uint8_t raw[];
  fusedops::sm90::Kernel<fusedops::sm90::Traits>::run(params, raw);
}
