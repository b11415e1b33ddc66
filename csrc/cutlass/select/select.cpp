#include "csrc/cutlass/select/select.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "csrc/common/int_math.h"
#include "csrc/cutlass/configs/cluster_configs.h"
#include "csrc/cutlass/configs/skinny_configs.h"
#include "csrc/cutlass/configs/sm80_configs.h"
#include "csrc/cutlass/configs/sm90_configs.h"
#include "csrc/cutlass/select/sm90_measured.h"
#include "csrc/cutlass/select/time_model.h"

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

// ---- measurements ----

bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

// The measured choice for exactly this product, or null. A row without a costly activation also
// serves those, where they have none of their own.
const MeasuredGemm* measured_choice(const GemmProblem& p) {
  if (!is_half(p.dtype)) return nullptr;
  const MeasuredGemm* found = nullptr;
  for (const MeasuredGemm& row : measured::kProducts) {
    if (row.m != p.m || row.n != p.n || row.k != p.k || row.a != p.a.major || row.b != p.b.major ||
        row.epilogue != p.epilogue) {
      continue;
    }
    if (row.costly && is_costly(p.activation)) return &row;
    if (!row.costly) found = &row;
  }
  return found;
}

bool is_choice(const MeasuredGemm& row, const GemmPlan& plan) {
  if (plan.family != row.family || splits_number(plan) != row.splits) return false;
  if (plan.family == Family::kCluster && plan.shared_tiles != row.shared_tiles) return false;
  const GemmConfig& c = config_of(plan.family, plan.config);
  return c.tile_m == row.tile_m && c.tile_n == row.tile_n && c.cluster_m == row.cluster_m &&
         c.cluster_n == row.cluster_n;
}

// ---- enumeration ----

constexpr int kSplitChoices[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128};
constexpr int kMostSplits = std::end(kSplitChoices)[-1], kMostFullWaves = 3;

bool is_split_choice(int splits) {
  return std::find(std::begin(kSplitChoices), std::end(kSplitChoices), splits) !=
         std::end(kSplitChoices);
}

// Whether one slice of K more would begin a wave, behind at most kMostFullWaves.
bool fills_waves(const TileCount& tiles, int splits) {
  const int64_t waves = ceil_div(tiles.all * splits, tiles.slots);
  return waves <= kMostFullWaves && tiles.all * (splits + 1) > waves * tiles.slots;
}

// K slices are whole mainloop steps, and a slice shorter than this is all prologue.
constexpr int64_t kMinSliceK = 256;

bool splits_allowed(const GemmProblem& p, int splits) {
  if (splits == 1) return true;
  // NOTE: fp64 partial sums would be rounded to fp32, bf16 parts of fp32 be cut apart.
  if (p.dtype == DType::kFloat64 || p.split_parts) return false;
  if (p.epilogue > Epilogue::kAccumulator) return false;  // splitk_reduce has no such epilogue
  return p.slices == 1 && p.k / splits >= kMinSliceK;
}

// NOTE: the kernels of fp32 matrices are CUTLASS's own.
bool may_have_tail(const GemmProblem& p, const GemmConfig& c, const DeviceModel& device) {
  return is_half(p.dtype) && p.slices == 1 && tail_of(p, count_tiles(p, c, device)).helpers > 0;
}

void enumerate_skinny(const GemmProblem& problem, const DeviceModel& device,
                      std::vector<Candidate>& candidates) {
  const char* refusal = device.capability / 10 != 9 ? "not a Hopper GPU" : skinny_refusal(problem);
  for (int i = 0; i < kNumSkinnyConfigs; ++i) {
    const GemmConfig& config = kSkinnyConfigs[i];
    Candidate candidate{{.family = Family::kSkinny, .config = i}, refusal};
    if (!refusal && config.cluster_n > ceil_div(problem.k, 128)) {
      candidate.rejected = "fewer steps of K than blocks to share them";
    }
    if (!candidate.rejected) candidate.plan.expected_us = skinny_us(problem, config, device);
    candidates.push_back(candidate);
  }
}

// Clusters of 1, 2, 4 or 8 blocks that run at a time: a GPC has SMs that are left over for 4 and 8.
int64_t cluster_slots(int blocks, const DeviceModel& device) {
  return blocks < 4 ? device.sm_count / blocks : device.sm_count * 10 / (11 * blocks);
}

void enumerate_cluster(const GemmProblem& problem, const DeviceModel& device,
                       std::vector<Candidate>& candidates) {
  const char* refusal = device.capability / 10 != 9 ? "not a Hopper GPU" : tma_refusal(problem);
  for (int i = 0; i < kNumClusterConfigs; ++i) {
    const ClusterConfig& config = kClusterConfigs[i];
    for (int together : kTileClusters) {
      if (together > 1 && config.cluster_n > 1) break;
      const TileCluster cluster = tile_cluster(config, problem, together);
      Candidate candidate{{.family = Family::kCluster, .config = i, .shared_tiles = together},
                          refusal};
      if (!refusal) candidate.rejected = cluster_refusal(config, problem);
      const int64_t tiles = cluster.tiles_of(config, problem);
      const int64_t slots = cluster_slots(together * config.cluster_n, device);
      if (!candidate.rejected && tiles > slots * together) {
        candidate.rejected = "more tiles than clusters that run at a time";
      }
      if (!candidate.rejected) {
        candidate.plan.expected_us = cluster_us(problem, config, cluster, double(tiles), device);
      }
      candidates.push_back(candidate);
    }
  }
}

// Bands of about the square root of the tiles that run at a time: both operands then share L2 best.
// Wider where few steps of K leave the output most of the traffic (1 to 3 % on H200, up to 8 % for
// thousands of columns).
int raster_width_of(const GemmProblem& p) { return p.k <= 512 && p.m >= p.n ? 32 : 8; }

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
  for (int splits = 1; splits <= kMostSplits; ++splits) {
    if (!splits_allowed(problem, splits)) continue;
    const bool any_tile = is_split_choice(splits);
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
      const GemmConfig& config = kSm90Configs[i];
      if (!any_tile && !fills_waves(count_tiles(slice, config, device), splits)) continue;
      Candidate candidate{plan_from_numbers(Family::kSm90, i, splits, raster_width_of(problem)),
                          refusal};
      if (!refusal) candidate.plan.expected_us = sm90_us(slice, config, candidate.plan, device);
      candidates.push_back(candidate);
      if (splits > 1 || !may_have_tail(slice, config, device)) continue;
      candidate.plan.k_split = KSplit::kTail;
      if (!refusal) candidate.plan.expected_us = sm90_us(slice, config, candidate.plan, device);
      candidates.push_back(candidate);
    }
    if (problem.split_parts || !any_tile) continue;
    for (int i = 0; i < kNumSm80Configs; ++i) {
      Candidate candidate{plan_from_numbers(Family::kSm80, i, splits, 8), sm80_refusal(i, slice)};
      candidate.plan.expected_us = sm80_us(slice, kSm80Configs[i], splits, device);
      candidates.push_back(candidate);
    }
  }
  enumerate_cluster(problem, device, candidates);
  enumerate_skinny(problem, device, candidates);
  // WGMMA has the higher rate and, when it is an option, the better latency: mma.sync never
  // competes with it.
  const auto is_wgmma = [](const Candidate& c) {
    return c.plan.family != Family::kSm80 && !c.rejected;
  };
  if (std::any_of(candidates.begin(), candidates.end(), is_wgmma)) {
    for (Candidate& c : candidates) {
      if (c.plan.family == Family::kSm80 && !c.rejected)
        c.rejected = "WGMMA kernels take this problem";
    }
  }
  return candidates;
}

GemmPlan select_gemm(const GemmProblem& problem, const DeviceModel& device) {
  // Where they can run the skinny kernels won every measured product.
  const bool skinny = device.capability / 10 == 9 && !skinny_refusal(problem);
  const MeasuredGemm* measured = skinny ? nullptr : measured_choice(problem);
  GemmPlan best;
  for (const Candidate& candidate : enumerate_candidates(problem, device)) {
    if (candidate.rejected || (skinny && candidate.plan.family != Family::kSkinny)) continue;
    const bool is_measured = measured && is_choice(*measured, candidate.plan);
    if (is_measured || best.config < 0 || candidate.plan.expected_us < best.expected_us) {
      best = candidate.plan;
    }
    best.chosen_by = is_measured ? ChosenBy::kMeasured
                     : skinny    ? ChosenBy::kSkinny
                                 : ChosenBy::kModel;
    if (is_measured) break;
  }
  return best;
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
  const double mma = double(p.m) * p.n * p.k / (kMmaPerCycle * device.sm_count * kClockGhz * 1e3);
  const double bytes = dram_bytes(p);
  if (is_costly(p.activation) && double(p.m) * p.n * output_bytes(p) > kMostOutputs * bytes) {
    return false;
  }
  return mma < kMostMma * bytes / kDramBytesPerUs;
}

int64_t column_sum_rows(const GemmPlan& plan, int64_t m) {
  const GemmConfig& c = config_of(plan.family, plan.config);
  return ceil_div(m, c.schedule == Schedule::kPingpong ? c.tile_m : c.tile_m / 2);
}

}  // namespace fusedops
