#include "cutlass/select.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "common/int_math.h"
#include "cutlass/sm80_configs.h"
#include "cutlass/sm90_configs.h"
#include "cutlass/sm90_measured.h"

namespace fusedops {
namespace {

// ---- legality ----

bool aligned16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

const char* operand_refusal(const GemmOperand& operand, int64_t rows, int64_t k, int64_t bytes) {
  if (!aligned16(operand.data)) return "an operand is not 16-byte aligned";
  if (operand.ld * bytes % 16 != 0) return "a leading dimension is not a multiple of 16 bytes";
  const int64_t contiguous = operand.major == Major::kK ? k : rows;
  if (contiguous * bytes % 16 != 0) return "a contiguous extent is not a multiple of 16 bytes";
  return nullptr;
}

// ---- the time model ----

// Fitted to the ranking within perf/results/h200/gemm_sweep.csv (one H200, bf16): over its problems
// the kernel that the model alone chooses costs 1.0 % more than the best one. Cycles are of a
// nominal clock.
constexpr double kClockGhz = 1.60;
constexpr double kMmaPerCycle = 2052;         // 16-bit multiply-adds per SM
constexpr double kSharedBytesPerCycle = 253;  // operands of a WGMMA come from shared memory
constexpr double kL2BytesPerCycle = 75;       // into shared memory, per SM
constexpr double kStepCycles = 34;            // of every 64-deep mainloop step
constexpr double kTileCycles = 216;           // of every tile: barriers, first operands
constexpr double kFillCycles = 1233;          // of a kernel: until the first MMA
constexpr double kEpilogueCycles = 259;       // of every tile, and then by its bytes and elements
constexpr double kEpilogueByteCycles = 0.0105;
constexpr double kEpilogueElementCycles = 0.031;
constexpr double kActivationCycles = 0.0509;  // an element, other than relu
constexpr double kExposedEpilogue = 1.5;  // of a pingpong epilogue that is longer than the mainloop
// A step of a tile with few rows of A: the CTAs of all columns want the same few cache lines.
constexpr double kHotRowCycles = 0.332, kHotRowPower = 1.5;
constexpr double kLaunchUs = 2.37;
constexpr double kDramBytesPerUs = 3.37e6;
constexpr double kReduceUs = 5.3;  // the split-K reduction, launch included

struct TileCost {
  double mainloop;  // cycles per tile
  double epilogue;
};

TileCost tile_cost(const GemmProblem& p, const GemmConfig& c, int64_t k) {
  const double steps = static_cast<double>(ceil_div(k, 128 / operand_bytes(p)));
  const double mma = double(c.tile_m) * c.tile_n * 64 / kMmaPerCycle;
  const double shared = (64.0 + c.tile_n) * 128 * c.tile_m / 64 / kSharedBytesPerCycle;
  const double l2 =
      128.0 * (c.tile_m / double(c.cluster_n) + c.tile_n / double(c.cluster_m)) / kL2BytesPerCycle;
  const double hot = kHotRowCycles * std::max(0.0, 1.0 - double(p.m) / c.tile_m) *
                     std::pow(static_cast<double>(ceil_div(p.n, c.tile_n)), kHotRowPower);
  const double out_bytes =
      (p.epilogue == Epilogue::kAccumulator ? 4.0 : double(dtype_bytes(p.dtype))) *
      (p.epilogue == Epilogue::kPreact ? 2 : 1);
  const bool cheap = p.activation == Activation::kNone || p.activation == Activation::kRelu;
  const double epilogue =
      kEpilogueCycles + double(c.tile_m) * c.tile_n *
                            (kEpilogueByteCycles * out_bytes + kEpilogueElementCycles +
                             (cheap ? 0 : kActivationCycles));
  return {steps * (std::max({mma, shared, l2}) + kStepCycles + hot) + kTileCycles, epilogue};
}

double sm90_us(const GemmProblem& p, const GemmConfig& c, int splits, const DeviceModel& device) {
  const int64_t slice_k = ceil_div(p.k, splits);
  const TileCost cost = tile_cost(p, c, slice_k);
  const int64_t clusters_m = ceil_div(ceil_div(p.m, c.tile_m), c.cluster_m);
  const int64_t clusters_n = ceil_div(ceil_div(p.n, c.tile_n), c.cluster_n);
  const int64_t clusters = clusters_m * clusters_n * splits;
  const int64_t slots = std::max(1, device.sm_count / (c.cluster_m * c.cluster_n));
  const double waves = static_cast<double>(ceil_div(clusters, slots));
  // Pingpong hides every epilogue but the last behind the other tile's mainloop, unless that is the
  // shorter one.
  const double cycles =
      c.schedule == Schedule::kPingpong
          ? (waves - 1) * std::max(cost.mainloop, cost.epilogue * kExposedEpilogue) +
                cost.mainloop + cost.epilogue
          : waves * (cost.mainloop + cost.epilogue);
  const double out = double(p.m) * p.n * (p.epilogue == Epilogue::kPreact ? 2 : 1);
  const double bytes =
      (double(p.m) * p.k + double(p.k) * p.n) * operand_bytes(p) + out * dtype_bytes(p.dtype);
  double us =
      kLaunchUs + std::max((kFillCycles + cycles) / (kClockGhz * 1e3), bytes / kDramBytesPerUs);
  if (splits > 1) us += kReduceUs + double(p.m) * p.n * splits * 4 / (2 * kDramBytesPerUs);
  return us;
}

// The FP32 FMA kernels: bound by instruction issue (smaller register tiles spend more of it on
// other things than FMAs) or by memory. Not fitted.
double simt_us(const GemmProblem& p, const GemmConfig& c, int splits, const DeviceModel& device) {
  const double fma_per_cycle = device.capability == 80 ? 64 : 128;
  const int outputs = c.tile_m * c.tile_n;
  const double efficiency = outputs >= 128 * 128 ? 0.78 : outputs >= 64 * 64 ? 0.7 : 0.5;
  const double tiles = double(ceil_div(p.m, c.tile_m)) * ceil_div(p.n, c.tile_n) * splits;
  const double waves = std::ceil(tiles / device.sm_count);
  const double fma = double(outputs) * ceil_div(p.k, splits) / (fma_per_cycle * efficiency);
  const double bytes = (double(p.m) * p.k + double(p.k) * p.n + double(p.m) * p.n) * 4;
  double us =
      kLaunchUs + std::max(waves * (2000 + fma) / (kClockGhz * 1e3), bytes / kDramBytesPerUs);
  if (splits > 1) us += kReduceUs + double(p.m) * p.n * splits * 4 / (2 * kDramBytesPerUs);
  return us;
}

// The mma.sync family: one block per SM at a time, about 60 % of the WGMMA rate.
double sm80_us(const GemmProblem& p, const GemmConfig& c, int splits, const DeviceModel& device) {
  if (p.math == MathMode::kFp32) return simt_us(p, c, splits, device);
  const double tiles = double(ceil_div(p.m, c.tile_m)) * ceil_div(p.n, c.tile_n) * splits;
  const double waves = std::max(1.0, std::ceil(tiles / device.sm_count));
  const double mma = double(c.tile_m) * c.tile_n * ceil_div(p.k, splits) / (kMmaPerCycle * 0.5);
  return kLaunchUs + waves * (2000 + mma) / (kClockGhz * 1e3) + (splits > 1 ? kReduceUs : 0);
}

// ---- measurements ----

bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

// The measured choice for exactly this product, or null.
const MeasuredGemm* measured_choice(const GemmProblem& p) {
  if (!is_half(p.dtype)) return nullptr;
  for (const MeasuredGemm& row : kSm90Measured) {
    if (row.m == p.m && row.n == p.n && row.k == p.k && row.a == p.a.major && row.b == p.b.major &&
        row.epilogue == p.epilogue) {
      return &row;
    }
  }
  return nullptr;
}

bool is_choice(const MeasuredGemm& row, const GemmPlan& plan) {
  if (plan.family != Family::kSm90 || plan.splits != row.splits) return false;
  const GemmConfig& c = kSm90Configs[plan.config];
  return c.tile_m == row.tile_m && c.tile_n == row.tile_n && c.cluster_m == row.cluster_m &&
         c.cluster_n == row.cluster_n;
}

// ---- enumeration ----

constexpr int kSplitChoices[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128};

// K slices are whole mainloop steps, and a slice shorter than this is all prologue.
constexpr int64_t kMinSliceK = 256;

bool splits_allowed(const GemmProblem& p, int splits) {
  if (splits == 1) return true;
  // NOTE: fp64 partial sums would be rounded to fp32, bf16 parts of fp32 be cut apart.
  if (p.dtype == DType::kFloat64 || p.split_parts) return false;
  if (p.epilogue > Epilogue::kAccumulator) return false;  // splitk_reduce has no such epilogue
  return p.slices == 1 && p.k / splits >= kMinSliceK;
}

// Bands of about the square root of the tiles that run at a time: both operands then share L2 best.
constexpr int kBand = 8;

}  // namespace

const char* tma_refusal(const GemmProblem& p) {
  const int64_t bytes = operand_bytes(p);
  const int64_t limit = std::numeric_limits<int32_t>::max();
  if (p.dtype == DType::kFloat64) return "fp64 has no WGMMA";
  if (p.math == MathMode::kFp32 && !p.split_parts) return "fp32 has no WGMMA but over bf16 parts";
  if (p.m > limit || p.n > limit || p.k > limit) return "an extent exceeds 2^31 - 1";
  if (const char* reason = operand_refusal(p.a, p.m, p.k, bytes)) return reason;
  if (const char* reason = operand_refusal(p.b, p.n, p.k, bytes)) return reason;
  const int64_t out_bytes = p.epilogue == Epilogue::kAccumulator ? 4 : dtype_bytes(p.dtype);
  if (!aligned16(p.d) || !aligned16(p.preact) || !aligned16(p.bias) || !aligned16(p.aux) ||
      !aligned16(p.hidden) || p.ldd * out_bytes % 16 != 0 || p.n * out_bytes % 16 != 0) {
    return "the output or the bias is not 16-byte aligned";
  }
  return nullptr;
}

std::vector<Candidate> enumerate_candidates(const GemmProblem& problem, const DeviceModel& device) {
  std::vector<Candidate> candidates;
  const char* refusal = device.capability / 10 != 9 ? "not a Hopper GPU" : tma_refusal(problem);
  for (int splits : kSplitChoices) {
    if (!splits_allowed(problem, splits)) continue;
    GemmProblem slice = problem;
    slice.accumulate = false;  // launch_plan's matter
    if (splits > 1) {
      slice.epilogue = Epilogue::kAccumulator;
      slice.activation = Activation::kNone;  // splitk_reduce applies it
    }
    for (int i = 0; i < kNumSm90Configs; ++i) {
      if (!sm90_compiled(i, slice.dtype, slice.math, slice.epilogue, slice.a.major,
                         slice.b.major)) {
        continue;
      }
      Candidate candidate{{Family::kSm90, i, splits}, refusal};
      const GemmConfig& config = kSm90Configs[i];
      candidate.plan.swizzle = kBand;
      if (!refusal) candidate.plan.expected_us = sm90_us(slice, config, splits, device);
      candidates.push_back(candidate);
    }
    if (problem.split_parts) continue;
    for (int i = 0; i < kNumSm80Configs; ++i) {
      Candidate candidate{{Family::kSm80, i, splits}, sm80_refusal(i, slice)};
      candidate.plan.expected_us = sm80_us(slice, kSm80Configs[i], splits, device);
      candidates.push_back(candidate);
    }
  }
  // WGMMA has the higher rate and, when it is an option, the better latency: the families never
  // compete.
  const auto runs_on_sm90 = [](const Candidate& c) {
    return c.plan.family == Family::kSm90 && !c.rejected;
  };
  if (std::any_of(candidates.begin(), candidates.end(), runs_on_sm90)) {
    for (Candidate& c : candidates) {
      if (c.plan.family == Family::kSm80 && !c.rejected)
        c.rejected = "WGMMA kernels take this problem";
    }
  }
  return candidates;
}

GemmPlan select_gemm(const GemmProblem& problem, const DeviceModel& device) {
  const MeasuredGemm* measured = measured_choice(problem);
  GemmPlan best;
  for (const Candidate& candidate : enumerate_candidates(problem, device)) {
    if (candidate.rejected) continue;
    if (measured && is_choice(*measured, candidate.plan)) return candidate.plan;
    if (best.config < 0 || candidate.plan.expected_us < best.expected_us) best = candidate.plan;
  }
  return best;
}

int64_t column_sum_rows(const GemmPlan& plan, int64_t m) {
  const GemmConfig& c = config_of(plan.family, plan.config);
  return ceil_div(m, c.schedule == Schedule::kPingpong ? c.tile_m : c.tile_m / 2);
}

int num_configs(Family family) {
  return family == Family::kSm90 ? kNumSm90Configs : kNumSm80Configs;
}

const GemmConfig& config_of(Family family, int config) {
  return family == Family::kSm90 ? kSm90Configs[config] : kSm80Configs[config];
}

std::string config_name(Family family, int config) {
  const GemmConfig& c = config_of(family, config);
  const char* schedule = c.schedule == Schedule::kPingpong      ? "pingpong"
                         : c.schedule == Schedule::kCooperative ? "cooperative"
                                                                : "multistage";
  char name[80];
  std::snprintf(name, sizeof name, "%s %dx%d %s %dx%d", family == Family::kSm90 ? "sm90" : "sm80",
                c.tile_m, c.tile_n, schedule, c.cluster_m, c.cluster_n);
  return name;
}

}  // namespace fusedops
