#include "csrc/cutlass/kernels/parts/parts.h"
#include "csrc/cutlass/kernels/parts/sm90_parts.cuh"

namespace fusedops::parts {
namespace {

template <int kTile>
const char* launch_layout(const GemmProblem& p, const LaunchContext& context) {
  const bool a = p.a.major == Major::kK, b = p.b.major == Major::kK;
  if (a && b) return launch<Shape<kTile, Major::kK, Major::kK>>(p, context);
  if (a) return launch<Shape<kTile, Major::kK, Major::kMN>>(p, context);
  if (b) return launch<Shape<kTile, Major::kMN, Major::kK>>(p, context);
  return launch<Shape<kTile, Major::kMN, Major::kMN>>(p, context);
}

const char* run(int tile, const GemmProblem& p, const LaunchContext& context) {
  static_assert(unaligned::kNumPartTiles == 4);
  switch (tile) {
    case 0: return launch_layout<0>(p, context);
    case 1: return launch_layout<1>(p, context);
    case 2: return launch_layout<2>(p, context);
    default: return launch_layout<3>(p, context);
  }
}

const bool registered = register_kernels(&run);

}  // namespace
}  // namespace fusedops::parts
