#include "csrc/cutlass/select/unaligned_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "csrc/common/int_math.h"
#include "csrc/cutlass/configs/operand_layout.h"
#include "csrc/cutlass/select/families.h"
#include "csrc/cutlass/select/split_k.h"
#include "csrc/cutlass/select/thin_plan.h"
#include "csrc/cutlass/select/time_model.h"

namespace fusedops {
namespace {

constexpr bool kUnalignedKernels = true;  // false: every such product is copied first
constexpr bool kPartKernels = true;       // false: fp32 products keep to the FMA kernels
constexpr bool kHopperKernels = true;     // false: WGMMA is not asked

// Fitted to 463 runs on an H100 and an H200 (87 products), which they meet within 10 % (rms): bytes
// of operands that an SM loads a cycle, and of shared memory that it writes and reads; cycles of a
// step of K alone, of a tile beside its steps, and of an output, alone and for every block that has
// an SM; bytes of DRAM, between those of the two.
constexpr double kLoadBytesPerCycle = 55, kSharedBytesPerCycleOfSm = 95;
constexpr double kLatencyCycles = 900, kExposed = 0.77, kTileStartCycles = 3700;
constexpr double kOutputCycles = 0.15, kSharedOutputCycles = 0.18;
// An activation more than relu, for every block that has an SM: five products with gelu and without
// on an H200.
constexpr double kCostlyOutputCycles = 0.25;
constexpr double kStreamBytesPerUs = 2.5e6, kCyclesPerUs = 1890;
// By hand, from 151 products in graphs on an H200: a launch, and what less the sum of slices takes.
constexpr double kStartUs = 1, kSlicesOverlapUs = 1.5;
// WGMMA is that much faster than mma.sync in the same tile (213 pairs on an H100: .87 to 1.08).
constexpr double kWgmmaFactor = 0.98;
constexpr int64_t kLongestSum = 2048;  // in one slice, see choose()

// What a step of K of a tile takes of an SM, in cycles: of its loads and shared memory, of MMAs;
// all that times a factor.
struct Step {
  double l1, mma, factor;
};

Step step_of(const GemmProblem& p, int number) {
  const unaligned::Tile& tile = unaligned::tile_of(p.dtype, number);
  const double rows = double(std::min<int64_t>(p.m, tile.m) + std::min<int64_t>(p.n, tile.n));
  const double written = tile.m + tile.n;
  const double read = double(tile.m) * warps_n(tile) + double(tile.n) * warps_m(tile);
  constexpr int kBytes = 2 * unaligned::kTileK;
  return {.l1 = rows * kBytes / kLoadBytesPerCycle +
                (written + read) * kBytes / kSharedBytesPerCycleOfSm,
          .mma = double(tile.m) * tile.n * unaligned::kTileK / kMmaPerCycle,
          .factor = unaligned::is_hopper(p.dtype, number) ? kWgmmaFactor : 1};
}

double unaligned_us(const GemmProblem& p, int number, int slices, const DeviceModel& device) {
  const unaligned::Tile& tile = unaligned::tile_of(p.dtype, number);
  const double blocks = double(ceil_div(p.m, tile.m)) * ceil_div(p.n, tile.n) * slices;
  const double sms = device.sm_count;
  const double waves = std::ceil(blocks / (sms * tile.per_sm));
  const double resident = std::min<double>(tile.per_sm, std::ceil(blocks / sms));
  const Step s = step_of(p, number);
  const double step =
      s.factor * std::max(resident * std::max(s.l1, s.mma), kLatencyCycles + kExposed * s.l1);
  const double steps = double(ceil_div(ceil_div(p.k, slices), unaligned::kTileK));
  const double act = is_costly(p.activation) ? kCostlyOutputCycles * resident : 0;
  const double output = kOutputCycles + kSharedOutputCycles * resident;
  const double stored =
      tile.m * tile.n * (output * (p.epilogue == Epilogue::kPreact ? 2 : 1) + act);
  const double us = waves * (steps * step + stored + kTileStartCycles) / kCyclesPerUs;
  return kStartUs + longer(us, dram_bytes(p) / kStreamBytesPerUs) +
         (slices > 1 ? reduce_us(p, slices) - kSlicesOverlapUs : 0);
}

const char* refusal_of(const MatrixView& a, const MatrixView& b, const GemmProblem& p,
                       const DeviceModel& device) {
  if (!kUnalignedKernels) return "switched off";
  if (const char* reason = unaligned::refusal(p)) return reason;
  if (p.dtype == DType::kFloat32) {
    if (!kPartKernels || !device.hopper()) return "bf16 parts on the way are for Hopper alone";
    return nullptr;
  }
  const OperandPlan operands = plan_operands(a, b, p, device);
  const bool copies = operands.pack_a || operands.pack_b || operands.pads_d;
  if (!copies && p.ldd % 8 == 0) return "nothing has to be copied";
  return nullptr;
}

struct Choice {
  int tile = 0, slices = 1;
  double us = 0;
};

Choice choose(const GemmProblem& p, const DeviceModel& device) {
  Choice best;
  const bool hopper = kHopperKernels && device.hopper(), parts = p.dtype == DType::kFloat32;
  for (int i = 0; i < unaligned::num_tiles(p.dtype, hopper); ++i) {
    const unaligned::Tile& tile = unaligned::tile_of(p.dtype, i);
    const int64_t tiles = ceil_div(p.m, tile.m) * ceil_div(p.n, tile.n);
    const int64_t enough = 4 * int64_t{device.sm_count} * tile.per_sm;
    for (int slices = 1; slices <= kMostSlices; ++slices) {
      const auto* known = std::find(std::begin(kSliceChoices), std::end(kSliceChoices), slices);
      if (!parts && known == std::end(kSliceChoices)) continue;
      if (!slices_allowed(p, slices) || (slices > 1 && tiles * slices > enough)) break;
      // NOTE: Tensor Cores cut off what they add to a sum; what leaves in fp32 shows it.
      const bool too_long = !parts && ceil_div(p.k, slices) > kLongestSum && slices < kMostSlices;
      if (p.epilogue == Epilogue::kAccumulator && too_long) continue;
      const double us = parts ? parts_us(p, i, slices, device) : unaligned_us(p, i, slices, device);
      if (best.us == 0 || us < best.us) best = {i, slices, us};
    }
  }
  return best;
}

// What parts_us asks of operands and d.
int64_t layout_of(const GemmProblem& p) {
  const auto of = [](const GemmOperand& o) {
    return unaligned::in_words(o) * 2 + (o.major == Major::kMN);
  };
  return of(p.a) * 8 + of(p.b) * 2 + (p.ldd % 4 != 0);
}

// The same, remembered by this thread: a loop does not rank tiles on every call.
Choice cached_choice(const GemmProblem& p, const DeviceModel& device) {
  struct Entry {
    std::array<int64_t, 10> key{-1};
    Choice choice;
  };
  static thread_local std::array<Entry, 64> cache;
  const std::array<int64_t, 10> key = {p.m,
                                       p.n,
                                       p.k,
                                       int64_t(p.epilogue),
                                       p.ldd != p.n,
                                       device.capability,
                                       device.sm_count,
                                       p.dtype == DType::kFloat32,
                                       is_costly(p.activation),
                                       p.dtype == DType::kFloat32 ? layout_of(p) : 0};
  const uint64_t hash = ((uint64_t(p.m) * 31 + p.n) * 31 + p.k) * 0x9e3779b97f4a7c15ull;
  Entry& entry = cache[hash >> 58];
  if (entry.key != key) entry = {key, choose(p, device)};
  return entry.choice;
}

// Each operand as it lies or, where that is faster, copied first into whole units.
void plan_parts(const MatrixView& a, const MatrixView& b, const DeviceModel& device,
                UnalignedPlan& plan) {
  const GemmProblem natural = plan.problem;
  GemmOperand as_a, as_b;
  const bool lies_a = natural_operand(a, as_a), lies_b = natural_operand(b, as_b);
  const auto reason = [](bool lies) {
    return lies ? "the copy costs less than words" : "neither of its strides is 1, or it overlaps";
  };
  plan.expected_us = 0;
  for (const bool pack_a : {false, true}) {
    for (const bool pack_b : {false, true}) {
      if (pack_a ? lies_a && !unaligned::in_words(as_a) : !lies_a) continue;
      if (pack_b ? lies_b && !unaligned::in_words(as_b) : !lies_b) continue;
      const auto copied = [](const MatrixView& view) {
        return GemmOperand{nullptr, packed_ld(view.cols, 4), Major::kK};
      };
      GemmProblem p = natural;
      p.a = pack_a ? copied(a) : as_a;
      p.b = pack_b ? copied(b) : as_b;
      const Choice choice = cached_choice(p, device);
      const auto copy_us = [&](const MatrixView& view) {
        return pack_us(natural, view.rows, view.cols, view.col_stride != 1);
      };
      const double us = choice.us + (pack_a ? copy_us(a) : 0) + (pack_b ? copy_us(b) : 0);
      if (plan.expected_us != 0 && us >= plan.expected_us) continue;
      plan.problem = p;
      plan.tile = choice.tile;
      plan.slices = choice.slices;
      plan.expected_us = us;
      plan.pack_a = pack_a ? reason(lies_a) : nullptr;
      plan.pack_b = pack_b ? reason(lies_b) : nullptr;
    }
  }
}

}  // namespace

UnalignedPlan plan_unaligned(const MatrixView& a, const MatrixView& b, const GemmProblem& problem,
                             const DeviceModel& device) {
  UnalignedPlan plan;
  plan.problem = problem;
  plan.rejected = refusal_of(a, b, problem, device);
  if (plan.rejected) return plan;
  if (problem.dtype == DType::kFloat32) {
    plan_parts(a, b.transposed(), device, plan);
    return plan;
  }
  if (!natural_operand(a, plan.problem.a) || !natural_operand(b.transposed(), plan.problem.b)) {
    plan.rejected = "neither stride of an operand is 1";
    return plan;
  }
  const Choice choice = cached_choice(plan.problem, device);
  if (choice.us == 0) plan.rejected = "sums over K would be too long";
  plan.tile = choice.tile;
  plan.slices = choice.slices;
  plan.expected_us = choice.us;
  return plan;
}

double otherwise_us(const MatrixView& a, const MatrixView& b, const GemmProblem& problem,
                    const DeviceModel& device) {
  const double us = gemm_us(a, b, problem, device);
  const ThinPlan thin = plan_thin(a, b, problem, device);
  return thin.rejected ? us : std::min(us, thin.expected_us);
}

bool unaligned_takes(const UnalignedPlan& plan, const MatrixView& a, const MatrixView& b,
                     const GemmProblem& problem, const DeviceModel& device) {
  if (plan.rejected) return false;
  // NOTE: the sums of a row of a weight's gradient are exact in fp32 by a streaming kernel, which
  // Tensor Cores truncate.
  const bool line = problem.m == 1 && problem.epilogue == Epilogue::kAccumulator;
  if (line && !plan_thin(a, b, problem, device).rejected) return false;
  return plan.expected_us < otherwise_us(a, b, problem, device);
}

std::string unaligned_name(const UnalignedPlan& plan) {
  const unaligned::Tile& tile = unaligned::tile_of(plan.problem.dtype, plan.tile);
  const bool hopper = unaligned::is_hopper(plan.problem.dtype, plan.tile);
  const bool parts = plan.problem.dtype == DType::kFloat32;
  return (parts    ? "parts "
          : hopper ? "unaligned wgmma "
                   : "unaligned ") +
         std::to_string(tile.m) + 'x' + std::to_string(tile.n);
}

}  // namespace fusedops
