#include "csrc/cutlass/select/unaligned_plan.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "csrc/common/int_math.h"
#include "csrc/cutlass/select/split_k.h"
#include "csrc/cutlass/select/thin_plan.h"
#include "csrc/cutlass/select/time_model.h"

namespace fusedops {
namespace {

using unaligned::kNumTiles;
using unaligned::kTileK;
using unaligned::kTiles;

constexpr bool kUnalignedKernels = true;  // false: every such product is copied first

// Fitted to 55 runs on an H100 (5 tiles, 11 products), which they meet within 12 % (rms): bytes of
// operands that an SM loads a cycle, and of shared memory that it writes and reads; multiply-adds;
// cycles of a step of K until its loads are there, and of a tile beside its steps; of an output,
// alone and for every block that has an SM; bytes of DRAM.
constexpr double kLoadBytesPerCycle = 66, kSharedBytesPerCycleOfSm = 92, kMmaSyncPerCycle = 1557;
constexpr double kLatencyCycles = 429, kExposedLoads = 0.48, kTileStartCycles = 2560;
constexpr double kOutputCycles = 0.58, kSharedOutputCycles = 0.15;
constexpr double kStreamBytesPerUs = 2.2e6, kCyclesPerUs = 1700;
constexpr int64_t kLongestSum = 2048;  // in one slice, see choose()

// What takes longer counts nearly alone: overlap(a, b, 4), which selection asks for too often.
double longer(double a, double b) { return std::sqrt(std::sqrt(a * a * a * a + b * b * b * b)); }

double unaligned_us(const GemmProblem& p, const unaligned::Tile& tile, int slices,
                    const DeviceModel& device) {
  const double blocks = double(ceil_div(p.m, tile.m)) * ceil_div(p.n, tile.n) * slices;
  const double sms = device.sm_count;
  const double waves = std::ceil(blocks / (sms * tile.per_sm));
  const double resident = std::min<double>(tile.per_sm, std::ceil(blocks / sms));
  const double row_bytes = kTileK * 2;  // of a step
  const double loaded = double(std::min<int64_t>(p.m, tile.m) + std::min<int64_t>(p.n, tile.n));
  const double read = double(tile.m) * warps_n(tile) + double(tile.n) * warps_m(tile);
  const double loads = loaded * row_bytes / kLoadBytesPerCycle;
  const double l1 = loads + (tile.m + tile.n + read) * row_bytes / kSharedBytesPerCycleOfSm;
  const double mma = double(tile.m) * tile.n * kTileK / kMmaSyncPerCycle;
  const double alone = kLatencyCycles + kExposedLoads * l1 + mma;
  const double step = std::max(resident * std::max(l1, mma), alone);
  const double steps = double(ceil_div(ceil_div(p.k, slices), kTileK));
  const double stored = tile.m * tile.n * (kOutputCycles + kSharedOutputCycles * resident);
  const double us = waves * (steps * step + stored + kTileStartCycles) / kCyclesPerUs;
  return kLaunchUs + longer(us, dram_bytes(p) / kStreamBytesPerUs) +
         (slices > 1 ? reduce_us(p, slices) : 0);
}

const char* refusal_of(const MatrixView& a, const MatrixView& b, const GemmProblem& p,
                       const DeviceModel& device) {
  if (!kUnalignedKernels) return "switched off";
  if (const char* reason = unaligned::refusal(p)) return reason;
  const OperandPlan operands = plan_operands(a, b, p, device);
  if (!operands.pack_a && !operands.pack_b && !operands.pads_d) return "nothing has to be copied";
  return nullptr;
}

struct Choice {
  int tile = 0, slices = 1;
  double us = 0;
};

Choice choose(const GemmProblem& p, const DeviceModel& device) {
  Choice best;
  for (int i = 0; i < kNumTiles; ++i) {
    const int64_t tiles = ceil_div(p.m, kTiles[i].m) * ceil_div(p.n, kTiles[i].n);
    const int64_t enough = 4 * int64_t{device.sm_count} * kTiles[i].per_sm;
    for (const int slices : kSliceChoices) {
      if (!slices_allowed(p, slices) || (slices > 1 && tiles * slices > enough)) continue;
      // NOTE: Tensor Cores cut off what they add to a sum; what leaves in fp32 shows it.
      const bool too_long = ceil_div(p.k, slices) > kLongestSum && slices < kMostSlices;
      if (p.epilogue == Epilogue::kAccumulator && too_long) continue;
      const double us = unaligned_us(p, kTiles[i], slices, device);
      if (best.us == 0 || us < best.us) best = {i, slices, us};
    }
  }
  return best;
}

// The same, remembered by this thread: a loop does not rank tiles on every call.
Choice cached_choice(const GemmProblem& p, const DeviceModel& device) {
  struct Entry {
    std::array<int64_t, 7> key{-1};
    Choice choice;
  };
  static thread_local std::array<Entry, 64> cache;
  const std::array<int64_t, 7> key = {
      p.m, p.n, p.k, int64_t(p.epilogue), p.ldd != p.n, device.capability, device.sm_count};
  const uint64_t hash = ((uint64_t(p.m) * 31 + p.n) * 31 + p.k) * 0x9e3779b97f4a7c15ull;
  Entry& entry = cache[hash >> 58];
  if (entry.key != key) entry = {key, choose(p, device)};
  return entry.choice;
}

}  // namespace

UnalignedPlan plan_unaligned(const MatrixView& a, const MatrixView& b, const GemmProblem& problem,
                             const DeviceModel& device) {
  UnalignedPlan plan;
  plan.problem = problem;
  plan.rejected = refusal_of(a, b, problem, device);
  if (plan.rejected) return plan;
  if (!natural_operand(a, plan.problem.a) || !natural_operand(b.transposed(), plan.problem.b)) {
    plan.rejected = "neither stride of an operand is 1";
    return plan;
  }
  const Choice choice = cached_choice(problem, device);
  plan.tile = choice.tile;
  plan.slices = choice.slices;
  plan.expected_us = choice.us;
  return plan;
}

bool unaligned_takes(const UnalignedPlan& plan, const MatrixView& a, const MatrixView& b,
                     const GemmProblem& problem, const DeviceModel& device) {
  return plan.rejected == nullptr && plan.expected_us < gemm_us(a, b, problem, device);
}

std::string unaligned_name(const UnalignedPlan& plan) {
  const unaligned::Tile& tile = kTiles[plan.tile];
  return "unaligned " + std::to_string(tile.m) + 'x' + std::to_string(tile.n);
}

}  // namespace fusedops
