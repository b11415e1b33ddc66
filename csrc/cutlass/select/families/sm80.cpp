// The mma.sync and FP32 FMA kernels, for what the others refuse.
#include <algorithm>
#include <cmath>

#include "csrc/common/int_math.h"
#include "csrc/cutlass/configs/sm80_configs.h"
#include "csrc/cutlass/select/families.h"
#include "csrc/cutlass/select/operands.h"
#include "csrc/cutlass/select/split_k.h"
#include "csrc/cutlass/select/time_model.h"

namespace fusedops {
namespace {

// What a wave of tiles takes beside all else where rows of d do not begin at 16 bytes, so that
// outputs are written one by one: all of the tile's, padding included.
double cut_rows_us(const GemmProblem& p, const GemmConfig& c) {
  const int64_t bytes = p.epilogue == Epilogue::kAccumulator ? 4 : dtype_bytes(p.dtype);
  if (p.ldd * bytes % 16 == 0 || dtype_bytes(p.dtype) > 4) return 0;
  return c.tile_m * c.tile_n / ((is_half(p.dtype) ? kCutHalves : kCutWords) * kClockGhz * 1e3);
}

// Instructions of a tile for one of K where operands are copied word by word (simt_gemm.cuh).
double word_instructions(const GemmProblem& p, const GemmConfig& c) {
  const double copied =
      (begins_aligned(p, p.a) ? 0 : c.tile_m) + (begins_aligned(p, p.b) ? 0 : c.tile_n);
  return copied * kWordInstructions;
}

// The FP32 FMA kernels. Small register tiles spend most instructions on other things than FMAs, so
// that two of them share an SM, and a tile that is alone there waits for the latency of its steps.
double simt_us(const GemmProblem& p, const GemmConfig& c, int slices, const DeviceModel& device) {
  const double fma_per_cycle = device.capability == 80 ? 64 : 128;
  const int outputs = c.tile_m * c.tile_n;
  const bool small = outputs < 64 * 64;
  const double efficiency = outputs >= 128 * 128 ? kSimtLarge : small ? kSimtSmall : kSimtMedium;
  const int64_t length = slices > 1 ? in_slices(p, slices).slice_k : p.k;
  const double tiles = double(ceil_div(p.m, c.tile_m)) * ceil_div(p.n, c.tile_n) * slices;
  const double busiest = std::ceil(tiles / device.sm_count), resident = small ? 2 : 1;
  const double words = word_instructions(p, c) / 128;
  const double issue =
      std::min(busiest, resident) * (outputs / (fma_per_cycle * efficiency) + words);
  const double step = std::max(issue, small ? kSimtAlone + words : 0);
  const double rounds = std::ceil(busiest / resident);
  const double cycles = rounds * step * length + (small ? rounds - 1 : rounds) * kTileCycles +
                        busiest * outputs / kStoredWords;
  const double bytes = (double(p.m) * p.k + double(p.k) * p.n + double(p.m) * p.n) * 4;
  const double sm = cycles / (kClockGhz * 1e3), dram = bytes / kDramBytesPerUs;
  const double us = kLaunchUs + (words > 0 ? sm + dram / kWordsStreamed : std::max(sm, dram));
  return us + busiest * cut_rows_us(p, c) +
         (slices > 1 ? reduce_us(p, slices) - kReduceOverlapUs : 0);
}

// The least time by the data sheets: multiply-adds per SM and nominal cycle, DRAM of Hopper, the
// A100 and the rest of Ampere and Ada.
double sm80_floor_us(const GemmProblem& p, const DeviceModel& device) {
  const bool a100 = device.capability == 80;
  const double fp64 = device.capability % 10 != 0 ? 2 : a100 ? 56 : 128;
  const double rate = p.dtype == DType::kFloat64   ? fp64
                      : p.dtype == DType::kFloat32 ? kMmaPerCycle * kSm80Tf32
                                                   : kMmaPerCycle * kSm80Half;
  const double mma = double(p.m) * p.n * p.k / (rate * device.sm_count * kClockGhz * 1e3);
  const double bytes_per_us = device.capability >= 90 ? kDramBytesPerUs
                              : a100                  ? kA100DramBytesPerUs
                                                      : kOtherDramBytesPerUs;
  return std::max(mma, dram_bytes(p) / bytes_per_us);
}

// The mma.sync family: one block per SM at a time, about 60 % of the WGMMA rate. The floor is the
// same for every kernel: it leaves their order as it is. What cut rows cost is not.
double sm80_us(const GemmProblem& p, const GemmConfig& c, int slices, const DeviceModel& device) {
  if (p.math == MathMode::kFp32) return simt_us(p, c, slices, device);
  const double tiles = double(ceil_div(p.m, c.tile_m)) * ceil_div(p.n, c.tile_n) * slices;
  const double waves = std::max(1.0, std::ceil(tiles / device.sm_count));
  const double mma =
      double(c.tile_m) * c.tile_n * ceil_div(p.k, slices) / (kMmaPerCycle * kSm80Half);
  const double us = waves * (kTileCycles + mma) / (kClockGhz * 1e3) + (slices > 1 ? kReduceUs : 0);
  return kLaunchUs + overlap(us, sm80_floor_us(p, device), kDramOverlap) +
         waves * cut_rows_us(p, c);
}

}  // namespace

void add_sm80(const GemmProblem& problem, const DeviceModel& device, Candidates& candidates) {
  for (const int slices : kSliceChoices) {
    if (!slices_allowed(problem, slices)) continue;
    const GemmProblem p = sliced(problem, slices);
    for (int i = 0; i < kNumSm80Configs; ++i) {
      Candidate candidate{{.family = Family::kSm80,
                           .config = i,
                           .k_split = slices > 1 ? KSplit::kSlices : KSplit::kNone,
                           .slices = slices},
                          sm80_refusal(i, p)};
      candidate.plan.expected_us = sm80_us(p, kSm80Configs[i], slices, device);
      candidates.push_back(candidate);
    }
  }
}

}  // namespace fusedops
