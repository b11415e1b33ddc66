#include "csrc/cutlass/select/narrow_plan.h"

#include <limits>

#include "csrc/cutlass/configs/narrow_problem.h"

namespace fusedops {
namespace {

// Measured on H200: with fewer rows the sums over rows, which every block has, cost more than the
// passes over dz that the kernel saves.
int64_t min_rows(const NarrowProblem& p) {
  if (p.n <= 128 || p.k <= 64) return 1024;
  return p.dx ? 16384 : 32768;
}

bool readable(const MatrixView& view) {
  return view.col_stride == 1 && view.row_stride >= view.cols && view.row_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

bool fits(int64_t features) {
  return features >= narrow::kMinFeatures && features <= narrow::kMaxFeatures && features % 8 == 0;
}

bool pays(const NarrowProblem& p) {
  // Plain products serve dx or dweight alone, where there is no dz to share.
  const bool shares = p.activation != Activation::kNone || p.dbias || (p.dx && p.dweight);
  return p.m >= min_rows(p) && (p.dx || p.dweight) && shares;
}

}  // namespace

bool narrow_takes(const NarrowProblem& p, const NarrowOperands& t, const DeviceModel& device) {
  const bool half = p.dtype == DType::kFloat16 || p.dtype == DType::kBFloat16;
  return device.hopper() && half && fits(p.n) && fits(p.k) && pays(p) &&
         p.m <= std::numeric_limits<int32_t>::max() - narrow::kTileRows && readable(t.dy) &&
         (t.saved.data == nullptr || readable(t.saved)) && (!p.dweight || readable(t.x)) &&
         (!p.dx || readable(t.weight));
}

}  // namespace fusedops
