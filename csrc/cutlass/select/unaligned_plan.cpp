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

// By hand, counted in machine code: no GPU has timed these kernels. Instructions of a thread for 16
// bytes of an operand and of a warp beside each MMA, of which an SM issues 128 and 4 a cycle;
// cycles of a step of K until its loads are there; bytes of a cycle into an SM; outputs that an SM
// writes in a cycle; the part of the bandwidth that streams reach.
constexpr double kVectorInstructions = 28, kMmaInstructions = 2;
constexpr double kLoadCycles = 1100, kSmBytesPerCycle = 50;
constexpr double kOutputsPerCycle = 6, kStreamed = 0.85;

// What takes longer counts nearly alone: overlap(a, b, 4), which selection asks for too often.
double longer(double a, double b) { return std::sqrt(std::sqrt(a * a * a * a + b * b * b * b)); }

double unaligned_us(const GemmProblem& p, const unaligned::Tile& tile, int slices,
                    const DeviceModel& device) {
  const double blocks = double(ceil_div(p.m, tile.m)) * ceil_div(p.n, tile.n) * slices;
  const double sms = device.sm_count;
  const double waves = std::ceil(blocks / (sms * tile.per_sm));
  const double resident = std::min<double>(tile.per_sm, std::ceil(blocks / sms));
  const double mmas = tile.m * tile.n * kTileK / 2048.0, rows = tile.m + tile.n;
  const double issue = (rows * 8 * kVectorInstructions / 32 + mmas * kMmaInstructions) / 4;
  const double mma = mmas * 2048 / (kMmaPerCycle * kSm80Half);
  const double busy = resident * std::max({issue, mma, rows * kTileK * 2 / kSmBytesPerCycle});
  const double step = std::max(busy, kLoadCycles + issue + mma);
  const double steps = double(ceil_div(ceil_div(p.k, slices), kTileK));
  const double stored = resident * tile.m * tile.n / kOutputsPerCycle;
  const double us = waves * (steps * step + stored + kLoadCycles) / (kClockGhz * 1e3);
  return kLaunchUs + longer(us, dram_bytes(p) / (kStreamed * kDramBytesPerUs)) +
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
