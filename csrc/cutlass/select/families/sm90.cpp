// The TMA + WGMMA kernels: every tile with every number of slices of K that may pay, and with a
// stream-K tail.
#include <algorithm>
#include <cmath>
#include <limits>

#include "csrc/common/int_math.h"
#include "csrc/cutlass/configs/alignment.h"
#include "csrc/cutlass/configs/sm90_configs.h"
#include "csrc/cutlass/configs/stream_k_tail.h"
#include "csrc/cutlass/select/families.h"
#include "csrc/cutlass/select/sm90_plan.h"
#include "csrc/cutlass/select/split_k.h"
#include "csrc/cutlass/select/time_model.h"

namespace fusedops {
namespace {

// ---- refusals ----

const char* operand_refusal(const GemmOperand& operand, int64_t rows, int64_t k, int64_t bytes,
                            bool ragged) {
  if (!aligned16(operand.data)) return "an operand is not 16-byte aligned";
  if (operand.ld * bytes % 16 != 0) return "a leading dimension is not a multiple of 16 bytes";
  const int64_t contiguous = operand.major == Major::kK ? k : rows;
  if (!ragged && contiguous * bytes % 16 != 0) {
    return "a contiguous extent is not a multiple of 16 bytes";
  }
  return nullptr;
}

// `ragged`: rows may end within 16 bytes, if only each begins on them.
const char* refusal_of_rows(const GemmProblem& p, bool ragged) {
  const int64_t bytes = dtype_bytes(p.dtype);
  const int64_t limit = std::numeric_limits<int32_t>::max();
  if (p.dtype == DType::kFloat64) return "fp64 has no WGMMA";
  if (p.math == MathMode::kFp32) return "fp32 has no WGMMA but over bf16 parts";
  if (p.m > limit || p.n > limit || p.k > limit) return "an extent exceeds 2^31 - 1";
  if (const char* reason = operand_refusal(p.a, p.m, p.k, bytes, ragged)) return reason;
  if (const char* reason = operand_refusal(p.b, p.n, p.k, bytes, ragged)) return reason;
  const int64_t out_bytes = p.epilogue == Epilogue::kAccumulator ? 4 : dtype_bytes(p.dtype);
  if (!aligned16(p.d) || !aligned16(p.preact) || !aligned16(p.bias) || !aligned16(p.aux) ||
      !aligned16(p.hidden) || p.ldd * out_bytes % 16 != 0 ||
      (!ragged && p.n * out_bytes % 16 != 0)) {
    return "the output or the bias is not 16-byte aligned";
  }
  return nullptr;
}

}  // namespace

const char* tma_refusal(const GemmProblem& p) { return refusal_of_rows(p, false); }

// NOTE: TMA fills boxes with zeros behind an extent and leaves out what lies there when it stores.
// The kernels of fp32 matrices are CUTLASS's own, which want whole accesses.
const char* sm90_refusal(const GemmProblem& p) {
  const bool known = p.epilogue == Epilogue::kFused || p.epilogue == Epilogue::kAccumulator;
  return refusal_of_rows(p, known && is_half(p.dtype));
}

namespace {

// ---- tiles ----

int64_t steps_of(const GemmProblem& p, int64_t k) {
  return ceil_div(k, 128 / dtype_bytes(p.dtype));
}

struct TileCount {
  int64_t all, slots;  // clusters of tiles, and of CTAs that run at a time
  int64_t last_wave() const { return all % slots; }
};

TileCount count_tiles(const GemmProblem& p, const GemmConfig& c, const DeviceModel& device) {
  const int64_t clusters_m = ceil_div(ceil_div(p.m, c.tile_m), c.cluster_m);
  const int64_t clusters_n = ceil_div(ceil_div(p.n, c.tile_n), c.cluster_n);
  return {clusters_m * clusters_n, std::max(1, device.sm_count / (c.cluster_m * c.cluster_n))};
}

// The stream-K tail of these tiles.
StreamKTail tail_of(const GemmProblem& p, const TileCount& tiles) {
  return stream_k_tail(tiles.last_wave(), tiles.slots, steps_of(p, p.k));
}

// ---- time ----

struct TileCost {
  double mainloop;  // cycles per tile
  double epilogue;
};

// Operand rows that a CTA reads for a step of its tile: a pair shares one operand.
double rows_of_a(const GemmConfig& c) { return c.tile_m / double(c.cluster_n); }
double rows_of_b(const GemmConfig& c) { return c.tile_n / double(c.cluster_m); }

double l2_cycles(const GemmProblem& p, const GemmConfig& c) {
  const auto cost = [&](int64_t line) {
    return 1 + (is_cut(p, line, 128) ? kCutLine * c.cluster_m * c.cluster_n : 0) +
           (is_cut(p, line, 32) ? kCutSector : 0);
  };
  return step_bytes(p, rows_of_a(c) * cost(line_of_a(p)), rows_of_b(c) * cost(line_of_b(p)),
                    kCold) /
         kL2BytesPerCycle;
}

// What the Tensor Cores alone take.
double mma_us(const GemmProblem& p, const DeviceModel& device) {
  return double(p.m) * p.n * p.k / (kMmaPerCycle * device.sm_count * kClockGhz * 1e3);
}

// Bytes of operands that all CTAs together read from L2.
double l2_bytes(const GemmProblem& p, const GemmConfig& c) {
  const double rows = (rows_of_a(c) + rows_of_b(c)) / (double(c.tile_m) * c.tile_n);
  return double(p.m) * p.n * p.k * dtype_bytes(p.dtype) * rows;
}

// What adding to D in memory takes more than storing, by the element.
double adding_cycles(const GemmProblem& p, const GemmConfig& c) {
  if (!p.accumulate) return 0;
  return c.schedule == Schedule::kPingpong ? kAddCycles : kPrefetchedAddCycles;
}

TileCost tile_cost(const GemmProblem& p, const GemmConfig& c, int64_t k) {
  const double steps = static_cast<double>(ceil_div(k, 128 / dtype_bytes(p.dtype)));
  const double mma = double(c.tile_m) * c.tile_n * 64 / kMmaPerCycle;
  const double shared =
      (64.0 + c.tile_n) * 128 * c.tile_m / 64 /
      (c.schedule == Schedule::kPingpong ? kSharedBytesPerCycle : kSharedBytesOfTwo);
  const double hot = kHotRowCycles * std::max(0.0, 1.0 - double(p.m) / c.tile_m) *
                     std::pow(static_cast<double>(ceil_div(p.n, c.tile_n)), kHotRowPower);
  const double epilogue =
      kEpilogueCycles +
      double(c.tile_m) * c.tile_n *
          (kEpilogueByteCycles * output_bytes(p) + kEpilogueElementCycles +
           (is_costly(p.activation) ? kActivationCycles : 0) +
           (p.epilogue == Epilogue::kGrad ? kGradientCycles : 0) + adding_cycles(p, c));
  return {steps * (std::max({mma, shared, l2_cycles(p, c)}) + hot), epilogue};
}

// Cycles of a last wave with a stream-K tail but for its epilogue.
double tail_cycles(const GemmProblem& p, const GemmConfig& c, const TileCount& tiles,
                   double mainloop) {
  const StreamKTail s = tail_of(p, tiles);
  const double part = double(s.part_steps) / double(steps_of(p, p.k)) * mainloop;
  const double exchange = kExchangeCycles + kExchangeByteCycles * c.tile_m * c.tile_n * 4;
  const double turns = double(ceil_div(tiles.last_wave() * s.parts, s.helpers));
  // The other warpgroup multiplies while one sends.
  const bool hidden = c.schedule == Schedule::kPingpong;
  const double helper = turns * (part + (hidden ? 0 : exchange)) + (hidden ? exchange : 0);
  return std::max(helper, mainloop - double(s.parts) * part) + double(s.parts) * exchange;
}

// The plan says how K is split.
double sm90_us(const GemmProblem& p, const GemmConfig& c, const GemmPlan& plan,
               const DeviceModel& device) {
  const int slices = plan.slices;
  const TileCost cost = tile_cost(p, c, ceil_div(p.k, slices));
  const TileCount tiles = count_tiles(p, c, device);
  const bool pingpong = c.schedule == Schedule::kPingpong;
  const double waves = static_cast<double>(ceil_div(tiles.all * slices, tiles.slots));
  // Pingpong hides every epilogue but the last behind the other tile's mainloop, unless that is the
  // shorter one.
  const double wave = pingpong ? std::max(cost.mainloop, cost.epilogue * kExposedEpilogue)
                               : cost.mainloop + cost.epilogue * kCooperativeEpilogue;
  const double last =
      plan.k_split == KSplit::kTail ? tail_cycles(p, c, tiles, cost.mainloop) : cost.mainloop;
  const double cycles =
      (waves - 1) * wave + last + cost.epilogue * (pingpong ? 1 : kCooperativeEpilogue);
  const double sms = (kFillCycles + cycles) / (kClockGhz * 1e3);
  const double dram = dram_bytes(p) / kDramBytesPerUs;
  double us = slices > 1 ? std::max(sms, dram) : overlap(sms, dram, kDramOverlap);
  if (mma_us(p, device) > kPowerUs) {
    us = overlap(us, l2_bytes(p, c) / kPowerBytesPerUs, kPowerOverlap);
  }
  us += kLaunchUs;
  if (slices > 1) us += reduce_us(p, slices);
  return us;
}

// ---- candidates ----

// Whether one slice of K more would begin a wave, behind at most three full ones.
bool fills_waves(const TileCount& tiles, int slices) {
  constexpr int kMostFullWaves = 3;
  const int64_t waves = ceil_div(tiles.all * slices, tiles.slots);
  return waves <= kMostFullWaves && tiles.all * (slices + 1) > waves * tiles.slots;
}

// NOTE: the kernels of fp32 matrices are CUTLASS's own.
bool may_have_tail(const GemmProblem& p, const GemmConfig& c, const DeviceModel& device) {
  return is_half(p.dtype) && p.slices == 1 && tail_of(p, count_tiles(p, c, device)).helpers > 0;
}

// Bands of about the square root of the tiles that run at a time: both operands then share L2 best.
// Wider where few steps of K leave the output most of the traffic (1 to 3 % on H200, up to 8 % for
// thousands of columns), and where pairs of CTAs share operands (1 % on H200 and on H100).
int raster_width_of(const GemmProblem& p, const GemmConfig& c) {
  if (p.k <= 512 && p.m >= p.n) return 32;
  return c.cluster_m * c.cluster_n > 1 ? 16 : 8;
}

// The candidates with so many slices of K; of one slice, those with a stream-K tail as well.
void add_slices(const GemmProblem& problem, int slices, const char* refusal,
                const DeviceModel& device, Candidates& candidates) {
  const bool any_tile = std::ranges::find(kSliceChoices, slices) != std::end(kSliceChoices);
  const GemmProblem p = sliced(problem, slices);
  for (int i = 0; i < kNumSm90Configs; ++i) {
    if (!sm90_compiled(i, p.dtype, p.math, p.epilogue, p.a.major, p.b.major)) continue;
    const GemmConfig& config = kSm90Configs[i];
    if (!any_tile && !fills_waves(count_tiles(p, config, device), slices)) continue;
    const auto add = [&](KSplit k_split) {
      Candidate candidate{{.family = Family::kSm90,
                           .config = i,
                           .k_split = k_split,
                           .slices = slices,
                           .raster_width = raster_width_of(problem, config)},
                          refusal};
      if (!refusal) candidate.plan.expected_us = sm90_us(p, config, candidate.plan, device);
      candidates.push_back(candidate);
    };
    add(slices > 1 ? KSplit::kSlices : KSplit::kNone);
    if (slices == 1 && may_have_tail(p, config, device)) add(KSplit::kTail);
  }
}

}  // namespace

void add_sm90(const GemmProblem& problem, const DeviceModel& device, Candidates& candidates) {
  const char* refusal = device.hopper() ? sm90_refusal(problem) : kNotHopper;
  for (int slices = 1; slices <= kMostSlices; ++slices) {
    if (slices_allowed(problem, slices)) {
      add_slices(problem, slices, refusal, device, candidates);
    }
  }
}

bool wants_dynamic_schedule(const GemmProblem& p, const GemmPlan& plan, const DeviceModel& device) {
  // Measured on H200. Taking costs all tiles a little, and CTAs beside each other no longer have
  // tiles beside each other.
  constexpr int64_t kLeastWaves = 6;
  constexpr double kMostMma = 0.6;      // of the time of DRAM
  constexpr double kMostOutputs = 0.7;  // of the bytes, where their activation takes its time
  if (plan.family != Family::kSm90 || plan.k_split != KSplit::kNone || p.slices != 1 ||
      !is_half(p.dtype)) {
    return false;
  }
  const GemmConfig& c = config_of(plan.family, plan.config);
  if (!has_dynamic_schedule(c.tile_m, p.epilogue, p.a.major, p.b.major)) return false;
  if (c.tile_m * c.tile_n < 128 * 128 && p.n > c.tile_n) return false;
  const TileCount tiles = count_tiles(p, c, device);
  if (tiles.all < kLeastWaves * tiles.slots) return false;
  const double bytes = dram_bytes(p);
  if (is_costly(p.activation) && double(p.m) * p.n * output_bytes(p) > kMostOutputs * bytes) {
    return false;
  }
  return mma_us(p, device) < kMostMma * bytes / kDramBytesPerUs;
}

int64_t summed_rows(const GemmPlan& plan) {
  const GemmConfig& c = config_of(plan.family, plan.config);
  return c.schedule == Schedule::kPingpong ? c.tile_m : c.tile_m / 2;
}

}  // namespace fusedops
