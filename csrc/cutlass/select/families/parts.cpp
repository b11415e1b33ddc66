// The time of fp32 products over parts (kernels/parts). Who takes them is for unaligned_plan.cpp.
#include <algorithm>
#include <cmath>

#include "csrc/common/int_math.h"
#include "csrc/cutlass/configs/unaligned_configs.h"
#include "csrc/cutlass/select/families.h"
#include "csrc/cutlass/select/split_k.h"
#include "csrc/cutlass/select/time_model.h"

namespace fusedops {
namespace {

// Fitted to 8604 runs of 778 products on an H200, which they meet within 8 % (rms). Cycles of a
// step of 32 of K: for its loads and shared memory, alone and for a column; more where lines of an
// operand are copied word by word, and where rows lie side by side; of MMAs, for a column. Of a
// tile beside its steps, and for a column of it; more where rows of d begin anywhere, and (by hand)
// for an activation more than relu.
constexpr double kPartStep = 529, kPartColumn = 9.9, kPartMma = 12;
constexpr double kPartWordsA = 388, kPartWordsB = 4.8, kPartAcrossA = 13, kPartAcrossB = 0.64;
constexpr double kPartTile = 1237, kPartStored = 40.4, kPartStoredWords = 14.9, kPartCostly = 32;
// NOTE: the fit has 1.3 us; but what these are compared with counts some 2 us more of a launch than
// it takes in a CUDA graph.
constexpr double kPartStartUs = 3.2, kPartCyclesPerUs = 1755;

}  // namespace

double parts_us(const GemmProblem& p, int number, int slices, const DeviceModel& device) {
  const unaligned::Tile& tile = unaligned::tile_of(p.dtype, number);
  const int64_t length = slices > 1 ? in_slices(p, slices).slice_k : p.k;
  const int64_t cut = ceil_div(p.k, length);  // as many or a few less
  const double tiles = double(ceil_div(p.m, tile.m)) * ceil_div(p.n, tile.n) * cut;
  const auto across = [](const GemmOperand& operand) { return operand.major == Major::kMN; };
  const double copied = kPartStep + kPartColumn * tile.n + kPartWordsA * unaligned::in_words(p.a) +
                        kPartWordsB * unaligned::in_words(p.b) * tile.n +
                        kPartAcrossA * across(p.a) + kPartAcrossB * across(p.b) * tile.n;
  const double step = std::max(copied, kPartMma * tile.n);
  const double stored = kPartStored + (p.ldd % 4 != 0 && cut == 1 ? kPartStoredWords : 0);
  const double results = stored * (p.epilogue == Epilogue::kPreact ? 2 : 1) +
                         (is_costly(p.activation) && cut == 1 ? kPartCostly : 0);
  const double cycles =
      double(ceil_div(length, unaligned::kPartTileK)) * step + kPartTile + results * tile.n;
  const double us = std::ceil(tiles / device.sm_count) * cycles / kPartCyclesPerUs;
  return kPartStartUs + longer(us, dram_bytes(p) / kDramBytesPerUs) +
         (cut > 1 ? reduce_us(p, static_cast<int>(cut)) - kReduceOverlapUs : 0);
}

}  // namespace fusedops
